use jobqueue::QueueMessage;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "thumbnail", crate = "not a path")]
struct Thumbnail {
    width: u32,
}

fn main() {}
