use jobqueue::QueueMessage;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "thumbnail", alias = "old", alias = "older", alias = "old")]
struct Thumbnail {
    width: u32,
}

fn main() {}
