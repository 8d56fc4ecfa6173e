use jobqueue::{QueueMessage, Validate};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "orders", kind = "order")]
struct Order {
    #[serde(skip)]
    #[message(non_empty)]
    note: String,
    #[serde(default, skip_serializing)]
    #[message(range(1..))]
    count: u32,
}

#[derive(Validate, Deserialize)]
struct Line {
    #[serde(skip_deserializing)]
    #[message(length(1..))]
    article: String,
}

fn main() {}
