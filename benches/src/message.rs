//! The message of the benchmarks.

use jobqueue::QueueMessage;
use jobqueue_bench_harness::{JOB_NAME, JOB_NOTE, JOB_URL};
use serde::{Deserialize, Serialize};

/// About 200 bytes of JSON, validated like any message.
#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "bench.thumbnail")]
pub(crate) struct Thumbnail {
    pub(crate) number: u64,
    pub(crate) sent: u64,
    #[message(length(1..=256))]
    name: String,
    #[message(length(1..=1024))]
    url: String,
    note: String,
}

impl Thumbnail {
    pub(crate) fn new(number: u64, sent: u64) -> Self {
        Self { number, sent, name: JOB_NAME.into(), url: JOB_URL.into(), note: JOB_NOTE.into() }
    }
}
