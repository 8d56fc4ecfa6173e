use jobqueue::QueueMessage;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "thumbnail", lease = "1.5s")]
struct Thumbnail {
    width: u32,
}

fn main() {}
