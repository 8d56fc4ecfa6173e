//! Ends the send of a list whose storage does not answer.

use std::sync::Mutex;

use tokio::time::Instant;

use super::put::SEND_BUDGET;
use crate::error::{Error, ErrorKind};
use crate::sync::lock;

/// The time since which no request for a list has succeeded. Once it reaches the send budget, the rest of the
/// list is not tried: each further request could take as long.
#[derive(Debug, Default)]
pub(super) struct Silence(Mutex<AnswerTimes>);

#[derive(Debug, Default)]
struct AnswerTimes {
    /// The start of the first request since the last success.
    silent_since: Option<Instant>,
    last_success: Option<Instant>,
}

impl Silence {
    /// Returns the start of the silence; `None` if the last request succeeded, or none was made.
    pub(super) fn since(&self) -> Option<Instant> {
        lock(&self.0).silent_since
    }

    /// Returns whether the storage has been silent for a whole send budget.
    pub(super) fn exceeds_budget(&self) -> bool {
        self.since().is_some_and(|since| since.elapsed() >= SEND_BUDGET)
    }

    /// Runs `request`, or fails fast if the storage has been silent for a whole send budget.
    pub(super) async fn guard<T>(&self, request: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        if self.exceeds_budget() {
            return Err(not_tried());
        }
        let began = Instant::now();
        let answer = request.await;
        self.record(began, std::slice::from_ref(&answer));
        answer
    }

    /// Records the answers to requests that began at `began`.
    pub(super) fn record<T>(&self, began: Instant, answers: &[Result<T, Error>]) {
        let mut times = lock(&self.0);
        if answers.iter().any(Result::is_ok) {
            *times = AnswerTimes { silent_since: None, last_success: Some(Instant::now()) };
            return;
        }
        // A permanent refusal says nothing about the storage: the message may never have been sent.
        let failed = answers.iter().any(|answer| answer.as_ref().is_err_and(Error::is_retryable));
        // A request that hung while others succeeded is no sign of an outage.
        if failed && times.last_success.is_none_or(|at| at <= began) {
            times.silent_since = Some(times.silent_since.map_or(began, |since| since.min(began)));
        }
    }
}

/// Returns the error of a message that was not tried, and so is certainly not stored.
pub(super) fn not_tried() -> Error {
    let text = "the message was not sent, because none of the list could be stored for 30 seconds; send it again later";
    Error::new(ErrorKind::Rejected, text).with_retryable(true)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn failure() -> [Result<(), Error>; 1] {
        [Err(Error::new(ErrorKind::Storage, "no answer").with_retryable(true))]
    }

    #[tokio::test(start_paused = true)]
    async fn request_that_hung_while_others_succeeded_is_no_silence() {
        let (silence, began) = (Silence::default(), Instant::now());
        advance(SECOND).await;
        silence.record(Instant::now(), &[Ok(())]);
        advance(SEND_BUDGET).await;
        silence.record(began, &failure());
        assert!(!silence.exceeds_budget());
    }

    #[tokio::test(start_paused = true)]
    async fn silence_begins_anew_after_a_success() {
        let silence = Silence::default();
        silence.record(Instant::now(), &failure());
        advance(SEND_BUDGET - SECOND).await;
        silence.record(Instant::now(), &[Ok(())]);
        let began = Instant::now();
        silence.record(began, &failure());
        advance(SECOND).await;
        assert!(!silence.exceeds_budget());
        advance(SEND_BUDGET).await;
        assert!(silence.exceeds_budget());
    }
}
