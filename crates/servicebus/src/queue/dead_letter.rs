//! Moves messages to the dead-letter subqueue of their queue.

use std::sync::Arc;

use async_trait::async_trait;

use super::super::amqp::settlement::{DeadLetterOutcome, Settlement};
use super::super::held::HeldMessage;
use super::ServiceBusQueues;
use super::letter::{digest, mark};
use super::message::{BODY, DESCRIPTION, LETTER, REASON, TEXT};
use super::update::{Lock, find_held};
use jobqueue_storage::rules::limits;
use jobqueue_storage::{
    DeadLetterMessage, MessageRef, NativeDeadLetters, Operation, QueueName, StoreError, UpdateMessage,
};

const OPERATION: &str = Operation::DeadLetter.as_str();
/// The service's limit for the reason and for the description, in characters.
const MAX_REASON_CHARS: usize = 4096;
/// The service's limit for all properties of a message, its own included, in bytes.
const MAX_PROPERTIES_BYTES: usize = 64 * 1024;
/// The bytes reserved for the service's own properties.
const SERVICE_PROPERTIES_BYTES: usize = 256;
/// The overhead of a property in addition to its name and its value, in bytes.
const PROPERTY_OVERHEAD: usize = 10;
/// The longest text that is stored in a property, in bytes.
const MAX_PROPERTY_TEXT_BYTES: usize = 24 * 1024;

#[async_trait]
impl NativeDeadLetters for ServiceBusQueues {
    /// Settles the message with the reason and its new text, as far as the properties of the message have
    /// room for them. A text that does not fit is written to the message's blob after the settlement, in
    /// place of the text that was saved under the lock. A crash between the two leaves the dead letter with
    /// the earlier text.
    async fn dead_letter(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        letter: DeadLetterMessage,
    ) -> Result<(), StoreError> {
        let DeadLetterMessage { text, cause, .. } = letter;
        limits::check_update(queue, &UpdateMessage::new(Default::default()).with_text(text.clone()))?;
        let (token, held) = find_held(self, queue, message, OPERATION).await?;
        let mut budget = PropertyBudget::of(&held);
        let reason = budget.shortened(REASON, &cause.reason);
        // Other tools read the body as it was sent, whose payload has been moved by now. Settling changes no
        // body: for a letter that a tool sent again, the body is still that of the first letter.
        let body = held.body_digest.clone().or_else(|| held.sent_text.as_deref().ok().map(digest));
        let text_properties = body
            .filter(|_| text.len() <= MAX_PROPERTY_TEXT_BYTES)
            .map(|body| [(BODY, body), (LETTER, mark(held.sequence, held.enqueued)), (TEXT, text.clone())]);
        let text_properties = text_properties.filter(|text_properties| {
            text_properties.iter().all(|(name, value)| budget.reserve(name, value.len()))
        });
        let fits = text_properties.is_some();
        let properties = match text_properties {
            Some(text_properties) => text_properties.into(),
            // The text of an earlier letter that a tool sent again must not be taken for this letter's text.
            None => stale_text_properties(&held).map(|name| (name, String::new())).collect(),
        };
        let description = budget.shortened(DESCRIPTION, cause.description.as_deref().unwrap_or_default());
        let outcome = DeadLetterOutcome { reason, description, properties };
        let lock = Lock { queues: self, queue, token, held };
        if !lock.held.is_settled {
            lock.settle(Settlement::DeadLetter(Arc::new(outcome)), OPERATION).await?;
            if fits {
                self.queue_blobs.forget(&lock.held).await;
                return Ok(());
            }
            // If this call fails or is dropped, the next call for the message writes the text. Without it,
            // the letter still needs the payload of its previous text.
            let mut settled = HeldMessage { is_settled: true, link: None, ..HeldMessage::clone(&lock.held) };
            settled.shed_content();
            self.held.insert(token, settled);
        }
        let saved = format!("{}\n{text}", lock.held.fence);
        self.queue_blobs.write(&lock.held, &saved).await.map_err(|error| lock.in_doubt(error))?;
        self.held.remove(token);
        Ok(())
    }
}

/// Returns those properties of an earlier letter's text that the message has.
fn stale_text_properties(held: &HeldMessage) -> impl Iterator<Item = &'static str> {
    let present = held.application_properties.as_ref();
    [LETTER, BODY, TEXT]
        .into_iter()
        .filter(move |name| present.is_some_and(|present| present.0.contains_key(*name)))
}

/// The bytes that are left for the properties of a message.
struct PropertyBudget(usize);

impl PropertyBudget {
    fn of(held: &HeldMessage) -> Self {
        // The properties of an earlier letter are replaced.
        let mut kept = held.application_properties.clone();
        if let Some(kept) = &mut kept {
            for name in [LETTER, TEXT, BODY, REASON, DESCRIPTION] {
                kept.0.swap_remove(name);
            }
        }
        let sections =
            [held.properties.as_ref().map(serde_amqp::to_vec), kept.as_ref().map(serde_amqp::to_vec)];
        let present: usize = sections.into_iter().flatten().flatten().map(|section| section.len()).sum();
        Self(MAX_PROPERTIES_BYTES.saturating_sub(present + SERVICE_PROPERTIES_BYTES))
    }

    /// Returns whether a property fits, and reserves its bytes if it does.
    fn reserve(&mut self, name: &str, bytes: usize) -> bool {
        let left = self.0.checked_sub(name.len() + PROPERTY_OVERHEAD + bytes);
        self.0 = left.unwrap_or(self.0);
        left.is_some()
    }

    /// Reserves bytes for a property; returns as much of its text as fits and as the service accepts.
    fn shortened(&mut self, name: &str, text: &str) -> String {
        let max_bytes = self.0.saturating_sub(name.len() + PROPERTY_OVERHEAD);
        let fits = |(at, c): &(usize, char)| at + c.len_utf8() <= max_bytes;
        let text: String =
            text.char_indices().take(MAX_REASON_CHARS).take_while(fits).map(|(_, c)| c).collect();
        self.reserve(name, text.len());
        text
    }
}
