use jobqueue::QueueMessage;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(kind = "thumbnail")]
struct Thumbnail {
    width: u32,
}

fn main() {}
