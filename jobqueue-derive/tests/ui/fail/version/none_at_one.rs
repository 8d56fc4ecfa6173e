use jobqueue::QueueMessage;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "thumbnail", upgrade_from = none)]
struct Thumbnail {
    width: u32,
}

fn main() {}
