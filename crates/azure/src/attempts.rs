//! One call to the service: its deadline, and the meaning of its failure.

use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

use azure_core::http::ClientMethodOptions;
use azure_core::http::Context;

use super::error;
use super::pipeline::{AnswerLimit, Receipt};
use crate::entropy;
use crate::storage::{PopReceipt, StoreError, StoreErrorKind};

/// The longest duration of a call when its caller has no shorter deadline: the service itself gives up after 30
/// seconds.
const LONGEST: Duration = Duration::from_secs(30);

/// The greatest number of times that a repeatable call is made.
const ATTEMPTS: u32 = 3;

/// The effect that a call may have had when its answer is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// The call only reads, so it has no effect.
    Reads,
    /// The call may have been applied; making it again is harmless.
    Repeatable,
    /// The call may have been applied, and making it again may have another effect.
    Once,
}

/// One call: its operation and its subject.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) operation: &'static str,
    pub(super) subject: &'a (dyn Display + Sync),
    pub(super) effect: Effect,
    /// The kind of error when the answer is longer than allowed.
    pub(super) too_long: StoreErrorKind,
}

impl<'a> Call<'a> {
    pub(super) fn reads(operation: &'static str, subject: &'a (dyn Display + Sync)) -> Self {
        Self { operation, subject, effect: Effect::Reads, too_long: StoreErrorKind::Protocol }
    }

    pub(super) fn repeatable(operation: &'static str, subject: &'a (dyn Display + Sync)) -> Self {
        Self { operation, subject, effect: Effect::Repeatable, too_long: StoreErrorKind::Protocol }
    }

    pub(super) fn once(operation: &'static str, subject: &'a (dyn Display + Sync)) -> Self {
        Self { operation, subject, effect: Effect::Once, too_long: StoreErrorKind::Protocol }
    }

    /// Returns the same call; an answer that is too long is an error of `kind`.
    pub(super) fn with_long_answers_as(self, kind: StoreErrorKind) -> Self {
        Self { too_long: kind, ..self }
    }

    /// Makes the call once.
    pub(super) async fn run<T>(
        self,
        call: impl Future<Output = azure_core::Result<T>>,
    ) -> Result<T, StoreError> {
        match tokio::time::timeout(LONGEST, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(error::from_sdk(self, &error)),
            Err(_) => Err(self
                .error(StoreErrorKind::Timeout)
                .with_detail(format!("no answer within {} s", LONGEST.as_secs()))
                .with_ambiguous(self.changes())),
        }
    }

    /// Makes a call that may be repeated up to three times, with short pauses, while the service is unavailable.
    pub(super) async fn run_again<T, F>(self, mut call: impl FnMut() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = azure_core::Result<T>>,
    {
        debug_assert_ne!(self.effect, Effect::Once);
        let mut attempt = 1;
        let mut open = false;
        loop {
            match self.run(call()).await {
                Err(error) if attempt < ATTEMPTS && error.kind() == StoreErrorKind::Unavailable => {
                    open |= error.is_ambiguous();
                    let pause =
                        Duration::from_millis(u64::from(entropy::random_range(50..150_u32) * attempt));
                    tokio::time::sleep(error.retry_after().unwrap_or(pause).min(Duration::from_secs(1)))
                        .await;
                    attempt += 1;
                }
                // An earlier attempt may have been applied, whatever the last one says.
                Err(error) => {
                    let ambiguous = open || error.is_ambiguous();
                    return Err(error.with_ambiguous(ambiguous));
                }
                Ok(answer) => return Ok(answer),
            }
        }
    }

    /// Returns an error of this call.
    pub(super) fn error(self, kind: StoreErrorKind) -> StoreError {
        StoreError::new(kind, self.operation, self.subject)
    }

    /// Returns the error of an argument that was refused before anything was sent.
    pub(super) fn refuse(self, detail: impl Into<String>) -> StoreError {
        self.error(StoreErrorKind::InvalidInput).with_detail(detail)
    }

    /// Returns the error of an answer that was received and not understood.
    pub(super) fn unreadable(self, detail: impl Into<String>) -> StoreError {
        self.error(StoreErrorKind::Protocol).with_detail(detail).with_ambiguous(self.changes())
    }

    /// Returns whether the call may have changed something.
    pub(super) fn changes(self) -> bool {
        self.effect != Effect::Reads
    }
}

/// Returns options for a call with a receipt, which must not stand in the request before the SDK has logged it.
pub(super) fn with_receipt(receipt: &PopReceipt) -> ClientMethodOptions<'static> {
    ClientMethodOptions { context: Context::new().with_value(Receipt(receipt.clone())) }
}

/// Returns options for a call whose answer may have up to `bytes` bytes.
pub(super) fn with_limit(bytes: u64) -> ClientMethodOptions<'static> {
    ClientMethodOptions { context: limited(bytes) }
}

/// Returns the context for a call whose answer may have up to `bytes` bytes.
pub(super) fn limited(bytes: u64) -> Context<'static> {
    Context::new().with_value(AnswerLimit(bytes))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use azure_core::error::{Error, ErrorKind};
    use azure_core::http::RawResponse;
    use azure_core::http::headers::Headers;

    use super::*;

    /// Checks F8: no call outlives the cap, and its outcome is unknown unless it only reads.
    #[tokio::test(start_paused = true)]
    async fn a_call_that_hangs_ends() {
        for (call, open) in
            [(Call::once("put message", &"q"), true), (Call::reads("peek messages", &"q"), false)]
        {
            let error = call.run(std::future::pending::<azure_core::Result<()>>()).await.unwrap_err();
            assert_eq!((error.kind(), error.is_ambiguous()), (StoreErrorKind::Timeout, open), "{error}");
        }
    }

    fn answer(status: u16) -> azure_core::Result<()> {
        let mut headers = Headers::new();
        headers.insert("x-ms-request-id", "1");
        let raw_response = Some(Box::new(RawResponse::from_bytes(status.into(), headers, "")));
        let kind = ErrorKind::HttpResponse { status: status.into(), error_code: None, raw_response };
        Err(Error::with_message(kind, ""))
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_be_repeated_is_tried_three_times() {
        let tried = Cell::new(0);
        let call = Call::repeatable("renew lease", &"b");
        let error = call
            .run_again(|| async {
                tried.set(tried.get() + 1);
                answer(500)
            })
            .await
            .unwrap_err();
        assert_eq!((tried.get(), error.is_ambiguous()), (3, true));
    }

    /// Checks that a refusal after a lost answer says nothing about the first attempt.
    #[tokio::test(start_paused = true)]
    async fn an_earlier_attempt_stays_open() {
        let tried = Cell::new(0);
        let call = Call::repeatable("renew lease", &"b");
        let error = call
            .run_again(|| async {
                tried.set(tried.get() + 1);
                answer(if tried.get() == 1 { 500 } else { 403 })
            })
            .await
            .unwrap_err();
        assert_eq!((error.kind(), error.is_ambiguous()), (StoreErrorKind::Unauthorized, true));
        let refused = call.run_again(|| async { answer(403) }).await.unwrap_err();
        assert!(!refused.is_ambiguous());
    }
}
