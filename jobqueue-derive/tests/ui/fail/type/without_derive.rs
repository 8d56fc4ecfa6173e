use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Thumbnail {
    width: u32,
}

fn main() {
    let _ = jobqueue::codec::encode_message(&Thumbnail { width: 1 });
}
