//! Information about a job besides its message: its id and attempt, the outcome of a delivery, and the delay between
//! attempts.

#[doc(inline)]
pub use jobqueue_message::job::{
    Backoff, BoxError, JobError, JobInfo, Outcome, Reason, TraceContext, Verdict,
};

/// The results of handlers and deliveries, and the texts of errors.
pub(crate) mod outcome {
    pub(crate) use jobqueue_message::job::{BoxError, JobError, Outcome, Reason, Verdict};
    pub(crate) use jobqueue_storage::text::{chain, printable};
}
