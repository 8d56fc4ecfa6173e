use jobqueue::QueueMessage;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "thumbnail")]
struct Thumbnail {
    #[message(key)]
    a: u32,
    #[message(key)]
    b: u32,
}

fn main() {}
