//! Makes calls to the service, with a deadline for each and a limit for repetitions.

use std::future::Future;
use std::time::Duration;

use super::call::{Call, Effect};
use super::error;
use super::pipeline::time_limit;
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::{StoreError, StoreErrorKind};

/// The maximum number of attempts of a repeatable call.
const MAX_ATTEMPTS: u32 = 3;
/// The mean pause after the first attempt.
const MEAN_PAUSE: Duration = Duration::from_millis(100);

impl Call<'_> {
    pub(super) async fn run<T>(
        self,
        call: impl Future<Output = azure_core::Result<T>>,
    ) -> Result<T, StoreError> {
        let limit = time_limit(self.content.unwrap_or(0));
        match tokio::time::timeout(limit, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(error::from_sdk(self, &error)),
            Err(_) => Err(self
                .error(StoreErrorKind::Timeout)
                .with_detail(format!("no answer within {} s", limit.as_secs()))
                .with_ambiguous(self.changes())),
        }
    }

    /// Makes a repeatable call up to three times, with short pauses, while the service is unavailable.
    pub(super) async fn run_repeatable<T, F>(
        self,
        runtime: &Runtime,
        mut call: impl FnMut() -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = azure_core::Result<T>>,
    {
        debug_assert_ne!(self.effect, Effect::Once);
        let mut attempt = 1;
        let mut is_ambiguous = false;
        loop {
            match self.run(call()).await {
                Err(error) if attempt < MAX_ATTEMPTS && error.kind() == StoreErrorKind::Unavailable => {
                    is_ambiguous |= error.is_ambiguous();
                    let pause = runtime.jitter(MEAN_PAUSE * attempt, 0.5..=1.5);
                    tokio::time::sleep(error.retry_after().unwrap_or(pause).min(Duration::from_secs(1)))
                        .await;
                    attempt += 1;
                }
                // An earlier attempt may have been applied, whatever the outcome of the last one.
                Err(error) => {
                    let ambiguous = is_ambiguous || error.is_ambiguous();
                    return Err(error.with_ambiguous(ambiguous));
                }
                Ok(answer) => return Ok(answer),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use azure_core::error::{Error, ErrorKind};
    use azure_core::http::RawResponse;
    use azure_core::http::headers::Headers;

    use super::*;

    /// No call outlives its time limit. Its outcome is then unknown, unless it only reads.
    #[tokio::test(start_paused = true)]
    async fn hanging_call_times_out() {
        for (call, is_ambiguous) in
            [(Call::once("put message", &"q"), true), (Call::reads("peek messages", &"q"), false)]
        {
            let error = call.run(std::future::pending::<azure_core::Result<()>>()).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Timeout, "{error}");
            assert_eq!(error.is_ambiguous(), is_ambiguous, "{error}");
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
    async fn repeatable_call_is_tried_three_times() {
        let tried = Cell::new(0);
        let call = Call::repeatable("renew lease", &"b");
        let error = call
            .run_repeatable(&Runtime::new(), || async {
                tried.set(tried.get() + 1);
                answer(500)
            })
            .await
            .unwrap_err();
        assert_eq!(tried.get(), 3);
        assert!(error.is_ambiguous());
    }

    /// A refusal after a lost answer does not show whether the first attempt was applied.
    #[tokio::test(start_paused = true)]
    async fn earlier_attempt_stays_ambiguous() {
        let tried = Cell::new(0);
        let call = Call::repeatable("renew lease", &"b");
        let error = call
            .run_repeatable(&Runtime::new(), || async {
                tried.set(tried.get() + 1);
                answer(if tried.get() == 1 { 500 } else { 403 })
            })
            .await
            .unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unauthorized);
        assert!(error.is_ambiguous());
        let refused = call.run_repeatable(&Runtime::new(), || async { answer(403) }).await.unwrap_err();
        assert!(!refused.is_ambiguous());
    }
}
