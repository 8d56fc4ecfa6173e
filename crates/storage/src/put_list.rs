//! Lists of messages on a storage that makes a request for each of them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::time::Instant;

use super::{Operation, PutMessage, PutOutcome, StoreError, StoreErrorKind};
use crate::name::QueueName;

/// The time after the call of [`Batches::put_all`](super::Batches::put_all) in which an adapter begins puts.
/// The caller tries the rest of the list again, if it still has time. So an adapter that is slow, or a service
/// that does not answer, cannot keep a list for longer than its sender may keep the positions of the list.
pub const PUT_LIST_PERIOD: Duration = Duration::from_secs(10);

/// Puts the messages of a list with a request for each, in their order and `concurrent` at a time. Returns an
/// answer for each, in their order. After [`PUT_LIST_PERIOD`] from `began`, the time of the call, it begins no
/// further put.
///
/// # Errors
/// For each message as `put`; an unambiguous `Timeout` for a message whose put was not begun.
///
/// # Cancel safety
/// If the future is dropped, some messages may have been added.
pub async fn put_each<F>(
    queue: &QueueName,
    messages: Arc<[PutMessage]>,
    concurrent: usize,
    began: Instant,
    mut put: impl FnMut(PutMessage) -> F,
) -> Vec<Result<PutOutcome, StoreError>>
where
    F: Future<Output = Result<PutOutcome, StoreError>>,
{
    let begin_until = began + PUT_LIST_PERIOD;
    let puts = stream::iter(0..messages.len()).map(|place| {
        let begun = (Instant::now() < begin_until).then(|| put(messages[place].clone()));
        async move {
            let answer = match begun {
                Some(put) => put.await,
                None => Err(not_begun(queue)),
            };
            (place, answer)
        }
    });
    // Unordered: a put that hangs occupies one place, and the answers behind it free theirs.
    let mut answers: Vec<_> = puts.buffer_unordered(concurrent).collect().await;
    answers.sort_unstable_by_key(|(place, _)| *place);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

fn not_begun(queue: &QueueName) -> StoreError {
    let error = StoreError::new(StoreErrorKind::Timeout, Operation::PutAll.as_str(), queue);
    error.with_detail("not sent: the messages before it in the list took too long")
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use tokio::time::sleep;

    use super::*;
    use crate::{MessageId, MessageRef, PopReceipt};

    /// Puts a hundred messages, each of which takes the time that `lasts` returns for its number.
    async fn put_hundred(
        concurrent: usize,
        lasts: impl Fn(u64) -> Duration,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        let queue = "work".parse().unwrap();
        let messages = (0..100).map(|number: u64| PutMessage::new(number.to_string())).collect();
        let put = |message: PutMessage| {
            let lasts = lasts(message.text.parse().unwrap());
            async move {
                sleep(lasts).await;
                let message = MessageRef { id: MessageId::new(&message.text), receipt: PopReceipt::new("r") };
                Ok(PutOutcome::new(message, SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH))
            }
        };
        put_each(&queue, messages, concurrent, Instant::now(), put).await
    }

    #[tokio::test(start_paused = true)]
    async fn put_that_hangs_holds_up_no_other() {
        let slow = |number: u64| Duration::from_secs(if number == 3 { 30 } else { 0 });
        let answers = put_hundred(2, slow).await;
        let ids: Vec<_> = answers.into_iter().map(|put| put.unwrap().message.id.to_string()).collect();
        assert_eq!(ids, (0..100).map(|number: u64| number.to_string()).collect::<Vec<_>>());
    }

    // round 30, storages 1
    #[tokio::test(start_paused = true)]
    async fn no_put_is_begun_after_the_period() {
        let began = Instant::now();
        let answers = put_hundred(16, |_| Duration::from_secs(4)).await;
        assert!(began.elapsed() < Duration::from_secs(13), "{:?}", began.elapsed());
        // They begin after 0, 4 and 8 seconds.
        assert!(answers[..48].iter().all(Result::is_ok));
        for answer in &answers[48..] {
            let error = answer.as_ref().unwrap_err();
            assert!(error.is_retryable() && !error.is_ambiguous(), "{error}");
        }
    }
}
