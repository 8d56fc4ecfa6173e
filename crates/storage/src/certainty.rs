//! The certainty of a change. All its attempts together decide whether it may have been applied, never the
//! last answer alone.

use std::time::Duration;

use tokio::time::Instant;

use super::{Backoff, StoreError, StoreErrorKind};
use crate::runtime::Runtime;

/// The pause before a throttled request is sent again, if the storage names none; doubles up to 5 seconds.
const THROTTLED_BACKOFF: Backoff = Backoff::exponential(Duration::from_millis(250), Duration::from_secs(5));
/// The shortest pause, whatever the storage asks for.
const MIN_PAUSE: Duration = Duration::from_millis(50);
/// The pause after any other failure, if the storage names none.
const FAILURE_BACKOFF: Backoff = Backoff::exponential(Duration::from_millis(250), Duration::from_millis(250));

/// The time limit of a [brief](Tries::brief) change.
const BRIEF_BUDGET: Duration = Duration::from_secs(30);

/// The effect of a change after one or several attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certainty {
    /// The storage confirmed the change.
    Applied,
    /// Every attempt certainly had no effect.
    NotApplied,
    /// No answer says whether the change was made.
    Unknown,
}

impl StoreError {
    /// Returns the certainty with which the failed operation was applied.
    #[doc(hidden)]
    #[inline]
    pub fn certainty(&self) -> Certainty {
        if self.is_ambiguous() { Certainty::Unknown } else { Certainty::NotApplied }
    }

    /// Returns whether the storage is overloaded: 503, or the service's own 500 with a pause to wait.
    #[inline]
    pub fn is_throttled(&self) -> bool {
        self.kind() == StoreErrorKind::Throttled
            || (self.kind() == StoreErrorKind::Timeout && self.retry_after().is_some())
    }
}

/// The attempts of one change: counts their failures, and decides whether and when to try again.
///
/// Errors leave only through [`failed`](Self::failed), [`pause`](Self::pause) and [`last`](Self::last), which
/// make an error ambiguous if *any* attempt was: a later refusal says nothing about the earlier attempt.
#[derive(Debug)]
pub struct Tries {
    runtime: Runtime,
    give_up: Instant,
    /// The number of resends left after a lost answer, and after a failure that certainly changed nothing.
    resends: (u32, u32),
    /// The number of failures so far, if the pauses grow with it.
    failed: Option<u32>,
    throttled: u32,
    in_doubt: bool,
    /// True if a pause that exceeds the remaining time is shortened to allow one more attempt.
    insists: bool,
}

impl Tries {
    /// Returns the attempts of a change that is given up at `give_up`. A throttled request is sent again
    /// until then. After a lost answer at most `lost` further attempts follow, and at most `refused` after a
    /// failure that certainly changed nothing.
    #[inline]
    pub fn until(runtime: &Runtime, give_up: Instant, lost: u32, refused: u32) -> Self {
        let (runtime, resends) = (runtime.clone(), (lost, refused));
        Self { runtime, give_up, resends, failed: None, throttled: 0, in_doubt: false, insists: false }
    }

    /// Returns the attempts of a change that is given up after 30 seconds; `lost` and `refused` are as in
    /// [`until`](Self::until).
    pub fn brief(runtime: &Runtime, lost: u32, refused: u32) -> Self {
        Self::until(runtime, Instant::now() + BRIEF_BUDGET, lost, refused)
    }

    /// Returns the attempts of a change that must follow an effect, however long an outage lasts. They
    /// continue as long as a further attempt may help. The caller ends them once another process may repeat
    /// the effect.
    pub fn persistent(runtime: &Runtime) -> Self {
        let beyond = Instant::now() + Duration::from_secs(10 * 365 * 86_400);
        Self { failed: Some(0), ..Self::until(runtime, beyond, u32::MAX, u32::MAX) }
    }

    /// Returns the attempts of a change that must follow an effect but is useless after `give_up`, such as
    /// the end of a lease. They continue until then, however long an outage lasts, as long as a further
    /// attempt may help.
    pub fn persistent_until(runtime: &Runtime, give_up: Instant) -> Self {
        let tries = Self::until(runtime, give_up, u32::MAX, u32::MAX);
        Self { failed: Some(0), insists: true, ..tries }
    }

    /// Makes one more attempt before the time is up, even if the storage asks for a longer pause.
    #[inline]
    pub fn insisting(self) -> Self {
        Self { insists: true, ..self }
    }

    /// Assumes that an attempt of another process may have made the change, if `in_doubt` is true.
    #[must_use]
    pub fn in_doubt_if(self, in_doubt: bool) -> Self {
        Self { in_doubt, ..self }
    }

    /// Returns whether an earlier attempt may have made the change.
    #[inline]
    pub fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// Repeats `attempt` until it succeeds or a further attempt is useless. For requests that are safe to
    /// repeat.
    ///
    /// # Errors
    /// The last failure; ambiguous if any attempt was.
    pub async fn run<T, F>(mut self, mut attempt: impl FnMut() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        loop {
            match attempt().await {
                Ok(done) => return Ok(done),
                Err(error) => self.failed(error).await?,
            }
        }
    }

    /// Counts the failure of an attempt and waits until the next attempt.
    ///
    /// # Errors
    /// Returns `error` if no further attempt follows; ambiguous if any attempt was.
    pub async fn failed(&mut self, error: StoreError) -> Result<(), StoreError> {
        let wait = self.pause(error)?;
        tokio::time::sleep(wait).await;
        Ok(())
    }

    /// Returns the last failure, after which no further attempt follows. It is ambiguous if any attempt was.
    pub fn last(&mut self, error: StoreError) -> StoreError {
        self.in_doubt |= error.is_ambiguous();
        error.with_ambiguous(self.in_doubt)
    }

    /// Counts the failure of an attempt, and returns the wait before the next attempt.
    ///
    /// # Errors
    /// As [`failed`](Self::failed).
    pub fn pause(&mut self, error: StoreError) -> Result<Duration, StoreError> {
        let lost = error.is_ambiguous() && !error.is_throttled();
        let may_help = error.is_retryable() || error.is_ambiguous();
        let error = self.last(error);
        let own = if error.is_throttled() {
            self.throttled = self.throttled.saturating_add(1);
            THROTTLED_BACKOFF.delay(self.throttled, &self.runtime).max(MIN_PAUSE)
        } else {
            let left = if lost { &mut self.resends.0 } else { &mut self.resends.1 };
            match left.checked_sub(1) {
                Some(rest) if may_help => *left = rest,
                _ => return Err(error),
            }
            match &mut self.failed {
                None => FAILURE_BACKOFF.delay(1, &self.runtime),
                Some(failed) => {
                    *failed = failed.saturating_add(1);
                    THROTTLED_BACKOFF.delay(*failed, &self.runtime)
                }
            }
        };
        let left = self.give_up.saturating_duration_since(Instant::now());
        match error.retry_after().map_or(own, |asked| asked.max(MIN_PAUSE)) {
            wait if wait <= left => Ok(wait),
            _ if self.insists && left > MIN_PAUSE => Ok(left * 3 / 4),
            _ => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn error(kind: StoreErrorKind, ambiguous: bool) -> StoreError {
        StoreError::new(kind, "update message", "work").with_ambiguous(ambiguous)
    }

    fn tries() -> Tries {
        Tries::until(&Runtime::new(), Instant::now() + MINUTE, 1, 2)
    }

    // After a lost answer, no later answer proves that the first attempt did not make the change.
    #[tokio::test(start_paused = true)]
    async fn later_refusal_does_not_settle_an_earlier_doubt() {
        use StoreErrorKind as K;
        for last in [K::Throttled, K::Unavailable, K::Unauthorized, K::InvalidInput] {
            let mut tries = tries();
            tries.failed(error(K::Timeout, true)).await.unwrap();
            assert!(tries.is_in_doubt());
            assert_eq!(tries.last(error(last, false)).certainty(), Certainty::Unknown, "{last:?}");
        }
        let mut certain = tries();
        certain.failed(error(K::Throttled, false)).await.unwrap();
        assert_eq!(certain.last(error(K::Unauthorized, false)).certainty(), Certainty::NotApplied);
    }

    #[tokio::test(start_paused = true)]
    async fn only_throttled_requests_are_sent_until_the_time_is_up() {
        use StoreErrorKind as K;
        let (started, mut throttled, mut sent) = (Instant::now(), tries(), 1);
        let given_up = loop {
            match throttled.failed(error(K::Throttled, true)).await {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
        };
        assert!(sent > 10, "{sent}");
        assert!(started.elapsed() > MINUTE - Duration::from_secs(6), "{:?}", started.elapsed());
        assert_eq!(given_up.certainty(), Certainty::Unknown);

        let mut lost = tries();
        lost.failed(error(K::Timeout, true)).await.unwrap();
        lost.failed(error(K::Throttled, true)).await.unwrap();
        assert!(lost.failed(error(K::Timeout, true)).await.is_err());
        let mut refused = tries();
        for resend in 0..3 {
            assert_eq!(refused.failed(error(K::Unavailable, false)).await.is_ok(), resend < 2);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pause_beyond_the_time_left_ends_the_tries() {
        let busy = || error(StoreErrorKind::Throttled, false).with_retry_after(2 * MINUTE);
        assert!(tries().failed(busy()).await.is_err());
        let started = Instant::now();
        let mut insisting = tries().insisting();
        insisting.failed(busy()).await.unwrap();
        assert!(started.elapsed() < MINUTE);
    }
}
