use jobqueue::QueueMessage;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
struct Thumbnail {
    width: u32,
}

fn main() {}
