use jobqueue::QueueMessage;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "thumbnail", version = 2, upgrade_from = Self)]
struct Thumbnail {
    width: u32,
}

fn main() {}
