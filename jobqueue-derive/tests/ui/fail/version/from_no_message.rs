use jobqueue::QueueMessage;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "thumbnail", version = 2, upgrade_from = u32)]
struct Thumbnail {
    width: u32,
}

impl From<u32> for Thumbnail {
    fn from(width: u32) -> Self {
        Self { width }
    }
}

fn main() {}
