use jobqueue::QueueMessage;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "thumbnail", version = 3, upgrade_from = none)]
struct Old {}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "thumbnail", version = 3, upgrade_from = Old)]
struct Thumbnail {
    width: u32,
}

impl From<Old> for Thumbnail {
    fn from(_: Old) -> Self {
        Self { width: 1 }
    }
}

fn main() {}
