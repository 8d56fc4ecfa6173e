use jobqueue::QueueMessage;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "*", alias = "jobqueue.raw")]
struct Thumbnail {
    width: u32,
}

fn main() {}
