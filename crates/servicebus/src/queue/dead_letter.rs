//! Moves messages to the dead-letter queue that the service has for each queue.

use std::sync::Arc;

use async_trait::async_trait;
use uuid::fmt::Hyphenated;

use super::super::amqp::settlement::{DeadLetterOutcome, Settlement};
use super::super::held::Held;
use super::ServiceBusQueues;
use super::message::{BODY, DESCRIPTION, LETTER, REASON, TEXT, digest};
use super::update::{Lock, held};
use jobqueue_storage::rules::limits;
use jobqueue_storage::{
    DeadLetterMessage, MessageRef, NativeDeadLetters, Operation, QueueName, StoreError, UpdateMessage,
};

const OPERATION: &str = Operation::DeadLetter.as_str();
/// The longest reason, and the longest description, that the service takes.
const MAX_CHARS: usize = 4096;
/// The most bytes that the service takes for all properties of a message, its own included.
const MAX_PROPERTIES: usize = 64 * 1024;
/// The bytes of the service's own properties.
const OWN_PROPERTIES: usize = 256;
/// The most bytes of a property besides its name and its value.
const FORM: usize = 10;
/// The longest text that a property shows.
const MAX_SHOWN: usize = 24 * 1024;

#[async_trait]
impl NativeDeadLetters for ServiceBusQueues {
    /// Writes the message's new text to a blob, and settles it with the reason and the number of the blob, as far as the message has room for
    /// them. A crash between the two leaves the message where it is, and a blob that a sweep removes. Without room for the number, the text
    /// is written after the settling, in the place of the text that was saved under the lock: a crash between the two leaves the dead letter
    /// with that one.
    async fn dead_letter(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        letter: DeadLetterMessage,
    ) -> Result<(), StoreError> {
        let DeadLetterMessage { text, cause, .. } = letter;
        limits::check_update(queue, &UpdateMessage::new(Default::default()).with_text(text.clone()))?;
        let (token, held) = held(self, queue, message, OPERATION).await?;
        let mut room = Room::of(&held);
        let mut properties = Vec::new();
        let number = if room.takes(LETTER, Hyphenated::LENGTH) {
            let number = self.beside.write_letter(&held, &text).await;
            let number = number.map_err(|error| error.with_ambiguous(false))?;
            properties.push((LETTER, number.to_string()));
            Some(number)
        } else {
            None
        };
        let lock = Lock { queues: self, queue, token, held };
        let reason = room.shortened(REASON, &cause.reason, 1);
        // One half, so that a text has room, too.
        let description = room.shortened(DESCRIPTION, cause.description.as_deref().unwrap_or_default(), 2);
        // Other tools see the message as it was sent, whose payload is elsewhere by now.
        if let Ok(body) = &*lock.held.body {
            let body = digest(body);
            if text.len() <= MAX_SHOWN && room.takes(BODY, body.len()) && room.takes(TEXT, text.len()) {
                properties.extend([(BODY, body), (TEXT, text.clone())]);
            }
        }
        let outcome = DeadLetterOutcome { reason, description, properties };
        let settled = lock.settle(Settlement::DeadLetter(Arc::new(outcome)), OPERATION).await;
        match &settled {
            Ok(()) if number.is_some() => self.beside.forget(&lock.held).await,
            Ok(()) => {
                let saved = format!("{}\n{text}", lock.held.fence);
                let written = self.beside.write(&lock.held, &saved).await;
                // The message is a dead letter, which may need what belongs to its former text.
                written.map_err(|error| error.with_ambiguous(true))?;
            }
            Err(error) if !error.is_ambiguous() => {
                if let Some(number) = number {
                    self.beside.forget_letter(&lock.held, number).await;
                }
            }
            // The message may be a dead letter that needs it.
            Err(_) => {}
        }
        settled
    }
}

/// The bytes that are left for properties of a message.
struct Room(usize);

impl Room {
    fn of(held: &Held) -> Self {
        let sections = [
            held.properties.as_ref().map(serde_amqp::to_vec),
            held.application_properties.as_ref().map(serde_amqp::to_vec),
        ];
        let present: usize = sections.into_iter().flatten().flatten().map(|section| section.len()).sum();
        Self(MAX_PROPERTIES.saturating_sub(present + OWN_PROPERTIES))
    }

    /// Returns whether there is room for a property, and takes it.
    fn takes(&mut self, name: &str, bytes: usize) -> bool {
        let left = self.0.checked_sub(name.len() + FORM + bytes);
        self.0 = left.unwrap_or(self.0);
        left.is_some()
    }

    /// Takes room for a property, at most a part of what there is; returns as much of its text as fits, and as the service takes.
    fn shortened(&mut self, name: &str, text: &str, parts: usize) -> String {
        let most = self.0.saturating_sub(name.len() + FORM) / parts;
        let fits = |(at, c): &(usize, char)| at + c.len_utf8() <= most;
        let text: String = text.char_indices().take(MAX_CHARS).take_while(fits).map(|(_, c)| c).collect();
        self.takes(name, text.len());
        text
    }
}
