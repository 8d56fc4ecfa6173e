use jobqueue::QueueMessage;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "thumbnail", version = 3, upgrade_from = none)]
struct Old {}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "thumbnail", version = 4, upgrade_from = Old)]
struct Thumbnail {
    width: u32,
}

fn main() {}
