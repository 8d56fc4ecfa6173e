use jobqueue::QueueMessage;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "Thumb--nails", knd = "thumbnail", poison_threshold = 0, lease = "1w")]
struct Thumbnail {
    #[message(key, range(9..=1))]
    width: u32,
    #[message(key, length(-1..))]
    name: String,
    #[message(pattern = "(")]
    photo: String,
}

// The stub stands in for the implementations, so that this line adds no errors.
fn main() {
    let _ = jobqueue::codec::encode_message(&Thumbnail { width: 1, name: String::new(), photo: String::new() });
}
