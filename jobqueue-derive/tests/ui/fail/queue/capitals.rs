use jobqueue::QueueMessage;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "Thumbnails", kind = "thumbnail")]
struct Thumbnail {
    width: u32,
}

fn main() {}
