use jobqueue::QueueMessage;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "thumbnail", timeout = "30s", max_run_time = "0s")]
struct Thumbnail {
    width: u32,
}

fn main() {}
