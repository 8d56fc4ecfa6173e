//! Moves messages to the dead-letter queue that the service has for each queue.

use std::sync::Arc;

use async_trait::async_trait;

use super::super::amqp::settlement::{DeadLetterOutcome, Settlement};
use super::ServiceBusQueues;
use super::message::{BODY, LETTER, TEXT, digest};
use super::update::{Lock, held};
use jobqueue_storage::QueueName;
use jobqueue_storage::rules::limits;
use jobqueue_storage::{
    DeadLetterMessage, MessageRef, NativeDeadLetters, Operation, StoreError, UpdateMessage,
};

const OPERATION: &str = Operation::DeadLetter.as_str();
/// The longest reason, and the longest description, that the service takes.
const MAX_CHARS: usize = 4096;
/// The most bytes that the service takes for all properties of a message, without what their names and forms need.
const MAX_PROPERTIES: usize = 62 * 1024;
/// The longest text that a property shows.
const MAX_SHOWN: usize = 24 * 1024;

#[async_trait]
impl NativeDeadLetters for ServiceBusQueues {
    /// Writes the message's new text to a blob, and settles it with the reason and the number of the blob. A crash between the two leaves
    /// the message where it is, and a blob that a sweep removes.
    async fn dead_letter(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        letter: DeadLetterMessage,
    ) -> Result<(), StoreError> {
        let DeadLetterMessage { text, cause, .. } = letter;
        limits::check_update(queue, &UpdateMessage::new(Default::default()).with_text(text.clone()))?;
        let (token, held) = held(self, queue, message, OPERATION).await?;
        let number = self.beside.write_letter(&held, &text).await;
        let number = number.map_err(|error| error.with_ambiguous(false))?;
        let lock = Lock { queues: self, queue, token, held };
        let reason = shortened(&cause.reason, MAX_CHARS);
        let present = lock.held.application_properties.as_ref().and_then(|all| serde_amqp::to_vec(all).ok());
        let room = MAX_PROPERTIES.saturating_sub(present.map_or(0, |bytes| bytes.len()) + reason.len());
        let description = shortened(cause.description.as_deref().unwrap_or_default(), room / 2);
        let room = room - description.len();
        let mut properties = vec![(LETTER, number.to_string())];
        // Other tools see the message as it was sent, whose payload is elsewhere by now.
        if text.len() <= MAX_SHOWN.min(room)
            && let Ok(body) = &*lock.held.body
        {
            properties.extend([(BODY, digest(body)), (TEXT, text)]);
        }
        let outcome = DeadLetterOutcome { reason, description, properties };
        let settled = lock.settle(Settlement::DeadLetter(Arc::new(outcome)), OPERATION).await;
        match &settled {
            Ok(()) => self.beside.forget(&lock.held).await,
            Err(error) if !error.is_ambiguous() => self.beside.forget_letter(&lock.held, number).await,
            // The message may be a dead letter that needs it.
            Err(_) => {}
        }
        settled
    }
}

/// Returns as many characters as the service takes, and as fit.
fn shortened(text: &str, most_bytes: usize) -> String {
    let fits = |(at, c): &(usize, char)| at + c.len_utf8() <= most_bytes;
    text.char_indices().take(MAX_CHARS).take_while(fits).map(|(_, c)| c).collect()
}
