//! The result of a handler, and the outcome of a delivery.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jobqueue_storage::text::chain;

use super::reason::Reason;

/// A boxed error of any kind.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// The reason why a handler did not finish its job, and the verdict on the message.
///
/// `?` turns any error into a *retry*, with one exception: if a send is refused because its message breaks
/// rules of its type, no retry can succeed, and `?` makes a *dead letter* with the reason
/// [`Reason::INVALID_SEND`]. `.map_err(JobError::retry)?` retries it nevertheless. Boxed errors and
/// `anyhow::Error` do not implement `Error` and need `.map_err(JobError::retry)?`, too. The constructors give
/// other verdicts:
///
/// ```
/// use jobqueue::JobError;
/// use std::time::Duration;
///
/// async fn charge(amount: u64) -> Result<(), JobError> {
///     if amount == 0 {
///         return Err(JobError::dead_letter("nothing to charge"));    // never try again
///     }
///     let till_is_open = true;
///     if !till_is_open {
///         return Err(JobError::snooze(Duration::from_secs(3600)));   // not a failure: come back later
///     }
///     let rate: f64 = "0.19".parse()?;                               // any other error: try again
///     let _ = rate;
///     Ok(())
/// }
/// ```
///
/// A clone shares the cause, so that one error can be the verdict on several jobs.
#[derive(Clone)]
pub struct JobError {
    verdict: Verdict,
    /// The code for a dead letter, if the application set one.
    reason: Option<Reason>,
    /// True if several jobs of one handler call share the error, of which perhaps only one caused it.
    is_shared: bool,
    source: Arc<dyn StdError + Send + Sync>,
}

/// The cause of a snooze for which the handler names none.
#[derive(Debug, thiserror::Error)]
#[error("snoozed")]
struct Snoozed;

/// The treatment of a message whose handler did not finish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Count a failed attempt; try again after the type's back-off.
    Retry,
    /// Count a failed attempt; try again after this time.
    RetryAfter(Duration),
    /// Do not try again: dead-letter the message.
    DeadLetter,
    /// Deliver the message again after this time, without counting an attempt.
    Snooze(Duration),
}

impl JobError {
    /// Returns a failure that is tried again after the type's back-off.
    pub fn retry(error: impl Into<BoxError>) -> Self {
        Self::new(Verdict::Retry, error.into())
    }

    /// Returns a failure that is tried again after `wait` (at most 7 days), for instance a service's
    /// `Retry-After`.
    pub fn retry_after(wait: Duration, error: impl Into<BoxError>) -> Self {
        Self::new(Verdict::RetryAfter(wait), error.into())
    }

    /// Returns a failure that no further attempt can repair. The message goes to the dead-letter queue with
    /// this error and the reason [`Reason::REJECTED`], or the reason set by
    /// [`with_reason`](Self::with_reason).
    pub fn dead_letter(error: impl Into<BoxError>) -> Self {
        Self::new(Verdict::DeadLetter, error.into())
    }

    /// Returns a request to deliver the message again after `wait` (at most 7 days). It is not a failure:
    /// attempts and checkpoint are kept. [`snooze_because`](Self::snooze_because) also records a cause.
    pub fn snooze(wait: Duration) -> Self {
        Self::new(Verdict::Snooze(wait), Snoozed.into())
    }

    /// Returns a [`snooze`](Self::snooze) with its cause, such as the answer of a service that asked for it.
    /// The cause is kept with the message as its last error, which `jobqueue explain` and `jobqueue peek`
    /// show; a snooze without one leaves the last error as it is.
    ///
    /// ```
    /// use jobqueue::JobError;
    /// use std::time::Duration;
    ///
    /// let error = JobError::snooze_because(Duration::from_secs(30), "the endpoint answered 429");
    /// assert_eq!(error.to_string(), "the endpoint answered 429");
    /// ```
    pub fn snooze_because(wait: Duration, cause: impl Into<BoxError>) -> Self {
        Self::new(Verdict::Snooze(wait), cause.into())
    }

    fn new(verdict: Verdict, source: BoxError) -> Self {
        Self { verdict, reason: None, is_shared: false, source: source.into() }
    }

    /// Marks the error as shared by several jobs. Each of them is tried again alone before it can become a
    /// dead letter.
    #[doc(hidden)]
    #[must_use]
    pub fn of_several(self) -> Self {
        Self { is_shared: true, ..self }
    }

    /// Returns whether several jobs share this error, of which perhaps only one caused it.
    #[doc(hidden)]
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Returns whether it is a snooze without a cause.
    #[doc(hidden)]
    pub fn is_without_cause(&self) -> bool {
        self.source.is::<Snoozed>()
    }

    jobqueue_storage::setters! {
        /// Sets the code of a dead letter with this error. Operators select the letters to redrive or to
        /// purge by it. It has no effect on an error that is tried again, not even on the last attempt.
        /// Choose codes other than the framework's, which keep their meanings.
        ///
        /// ```
        /// use jobqueue::{JobError, Reason};
        ///
        /// let error = JobError::dead_letter("customer 7 has left").with_reason(Reason::new("no_customer"));
        /// assert_eq!(error.reason().unwrap(), "no_customer");
        /// ```
        with_reason(reason: Reason);
    }

    /// Returns the code set by [`with_reason`](Self::with_reason).
    pub fn reason(&self) -> Option<&Reason> {
        self.reason.as_ref()
    }

    /// Returns the verdict.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Returns the cause.
    pub fn source(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.source
    }

    /// Returns the cause and all causes below it as one line. After 2,000 characters it is cut and ends with
    /// an ellipsis. This line is kept with the message.
    pub fn chain(&self) -> String {
        chain(&*self.source)
    }
}

impl fmt::Debug for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobError")
            .field("verdict", &self.verdict)
            .field("reason", &self.reason)
            .field("source", &self.source)
            .finish()
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

/// The outcome of one delivery.
///
/// Each delivery has exactly one outcome. `Event::Finished` contains it, `Report` counts the outcomes, and
/// metrics have its [code](Self::as_str) as a label.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The handler finished and the message is deleted.
    Completed,
    /// The attempt failed; the message is delivered again after this time.
    Retried(Duration),
    /// The message is in the dead-letter queue.
    DeadLettered(Reason),
    /// The message is delivered again after this time, without counting an attempt: after a snooze, during a
    /// shutdown, or for a kind of a newer release.
    Released(Duration),
    /// The lease was lost, and nothing was settled. The worker that now holds the message decides.
    LeaseLost,
    /// The handler finished, but it is unknown whether the message is deleted. If it is delivered again, this
    /// process deletes it without running it, as long as it remembers the job.
    CompletedUncertain,
    /// The message was deleted without being run: its job was already done, its sender cancelled it, another
    /// message continues the job, or its dead letter was redriven or purged.
    Duplicate,
    /// The message's time to live ended before its job was done, and nothing was settled.
    Expired,
}

impl Outcome {
    /// Returns the code for logs and metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Retried(_) => "retried",
            Self::DeadLettered(_) => "dead_lettered",
            Self::Released(_) => "released",
            Self::LeaseLost => "lease_lost",
            Self::CompletedUncertain => "completed_uncertain",
            Self::Duplicate => "duplicate",
            Self::Expired => "expired",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] std::num::ParseIntError);

    #[test]
    fn chain_shows_each_cause_once_in_one_line() {
        let error = JobError::from(Outer("x".parse::<u8>().unwrap_err()));
        assert_eq!(error.chain(), "outer: invalid digit found in string");
        assert_eq!(JobError::retry("a\n\u{1b}[31mb").chain(), "a  [31mb");
        assert_eq!(JobError::retry("x".repeat(3_000)).chain().chars().count(), 2_001);
    }
}
