//! Information about a job besides its message: its id and attempt, the outcome of a delivery, and the delay
//! between attempts.

#[doc(inline)]
pub use jobqueue_message::job::{
    Backoff, BoxError, JobError, JobInfo, Outcome, Reason, TraceContext, Verdict,
};

/// The results of handlers and deliveries, and the texts of errors and records.
pub(crate) mod outcome {
    pub(crate) use jobqueue_message::job::{BoxError, JobError, Outcome, Reason, Verdict};
    pub(crate) use jobqueue_storage::text::{chain, panic_text, printable};

    /// The maximum number of bytes that records keep of a key or a kind, which a producer may make
    /// arbitrarily long. Ids and sources are never longer.
    const MAX_RECORDED_BYTES: usize = 1_024;

    /// Returns the part of a key or kind that records keep: its first 1,024 bytes.
    pub fn kept_text(text: &str) -> &str {
        match text.len() {
            0..=MAX_RECORDED_BYTES => text,
            _ => (0..=MAX_RECORDED_BYTES).rev().find_map(|end| text.get(..end)).unwrap_or_default(),
        }
    }
}
