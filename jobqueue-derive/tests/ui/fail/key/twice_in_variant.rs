use jobqueue::QueueMessage;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "thumbnail")]
enum Thumbnail {
    Small(#[message(key)] u8, #[message(key)] u8),
    Large(#[message(key)] u8),
}

fn main() {}
