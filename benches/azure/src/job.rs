//! The measured message, in three sizes.

use clap::ValueEnum;
use jobqueue::QueueMessage;
use jobqueue_bench_harness::{JOB_NAME, JOB_NOTE, JOB_URL};
use serde::{Deserialize, Serialize};

/// The size of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Size {
    /// About 200 bytes.
    Short,
    /// 64 KiB, which together with its attributes does not fit into a message.
    Kib64,
    /// 1 MiB.
    Mib1,
}

impl Size {
    /// Returns the name of the size in figures.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Kib64 => "64k",
            Self::Mib1 => "1m",
        }
    }

    /// Returns whether the payload goes into a blob.
    pub(crate) fn is_offloaded(self) -> bool {
        self != Self::Short
    }

    fn filler(self) -> usize {
        match self {
            Self::Short => 0,
            Self::Kib64 => 64 << 10,
            Self::Mib1 => 1 << 20,
        }
    }
}

/// 200 bytes of JSON and a filler, validated like any message.
#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "bench.thumbnail")]
pub(crate) struct Thumbnail {
    number: u64,
    #[message(length(1..=256))]
    name: String,
    #[message(length(1..=1024))]
    url: String,
    note: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    filler: String,
}

impl Thumbnail {
    pub(crate) fn new(number: u64, size: Size) -> Self {
        let filler = "0123456789abcdef".repeat(size.filler() / 16);
        Self { number, name: JOB_NAME.into(), url: JOB_URL.into(), note: JOB_NOTE.into(), filler }
    }
}
