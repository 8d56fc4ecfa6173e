use jobqueue::{QueueMessage, Validate};
use serde::{Deserialize, Serialize};

use jobqueue::codec::Json;

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "thumbnail.old")]
struct Old {}

impl From<Old> for Thumbnail {
    fn from(_: Old) -> Self {
        unreachable!()
    }
}

fn fits(_: &Thumbnail) -> Result<(), String> {
    Ok(())
}

fn even(_: &u32) -> Result<(), &'static str> {
    Ok(())
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(
    queue = "thumbnails",
    kind = "thumbnail",
    version = 2,
    upgrade_from = Old,
    alias = "a",
    alias = "b",
    codec = Json,
    poison_threshold = 5,
    lease = "30s",
    max_run_time = "1h",
    backoff(base = "1s", max = "10m"),
    validate = fits,
    crate = "jobqueue"
)]
struct Thumbnail {
    #[message(key, length(1..=64), pattern = "^[a-z]+$")]
    name: String,
    #[message(range(1..=64), with = even)]
    width: u32,
    #[message(url)]
    url: String,
    #[message(email)]
    email: String,
    #[message(nested, non_empty)]
    parts: Vec<Part>,
}

#[derive(Serialize, Deserialize, Validate)]
#[message(crate = jobqueue)]
struct Part {
    #[message(range(1..))]
    n: u8,
}

#[test]
fn compiles_and_checks() {
    assert_eq!(Thumbnail::VERSION, 2);
}
