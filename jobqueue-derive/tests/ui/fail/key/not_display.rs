use jobqueue::QueueMessage;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "thumbnail")]
struct Thumbnail {
    #[message(key)]
    names: Vec<String>,
}

fn main() {}
