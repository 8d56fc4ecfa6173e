//! Numbers the deliveries of messages, and stores the state of messages that were put back in sessions.
//!
//! In sessions, the service does not count a delivery that ended with its link. The message of a process that
//! is killed repeatedly would always look like a first delivery, and two of its runs would have the same
//! fence. The blob of a message's text therefore also contains the number of the last delivery, which is
//! written before the message is handed out.
//!
//! Without sessions, it is not known whether the service counts a delivery whose lock is dropped with its
//! connection. In such queues, deliveries are numbered only for messages that have a blob because a text was
//! saved for them.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;

use super::amqp::millis;
use super::held::HeldMessage;
use super::texts::{MAX_ROUNDS, QueueBlobs, SavedText};
use jobqueue_storage::json_blob::is_raced;
use jobqueue_storage::{Condition, PutBlob, StoreError, StoreErrorKind as Kind, put_creating};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeliveryStart {
    Now,
    /// The message was given back until this time.
    NotBefore(SystemTime),
}

impl HeldMessage {
    fn set_delivery_number(&mut self, count: u32) {
        self.dequeue_count = count;
        self.fence = count;
    }
}

impl QueueBlobs {
    /// Counts a delivery, and reads the text that was saved earlier. Without sessions, creates no blob for a
    /// message that has none. `now` is the service's time.
    pub(super) async fn begin_delivery(
        &self,
        held: &mut HeldMessage,
        now: SystemTime,
    ) -> Result<DeliveryStart, StoreError> {
        let name = self.name_of(held)?;
        let counted = held.dequeue_count;
        let is_in_session = held.session.is_some();
        let mut present: Option<SavedText> = if is_in_session { None } else { self.read_saved(held).await? };
        for _ in 0..MAX_ROUNDS {
            let (condition, rest) = match &present {
                None if !is_in_session => return Ok(DeliveryStart::Now),
                None => {
                    held.set_delivery_number(counted);
                    (Condition::IfAbsent, String::new())
                }
                // The blob stays unchanged for a version that can read it; the message is dead-lettered.
                Some(SavedText { text: Some(Err(unreadable)), .. }) => {
                    held.text = Arc::new(Err(unreadable.clone()));
                    return Ok(DeliveryStart::Now);
                }
                Some(saved) => {
                    if let Some(at) = saved.held_until(now) {
                        return Ok(DeliveryStart::NotBefore(at));
                    }
                    held.set_delivery_number(counted.max(saved.delivery.saturating_add(1)));
                    let rest = saved.text.iter().flatten().map(|text| format!("\n{text}")).next();
                    (Condition::IfMatch(saved.tag.clone()), rest.unwrap_or_default())
                }
            };
            let data = Bytes::from(format!("{}{rest}", held.fence));
            match put_creating(&*self.blobs, &name, data, PutBlob::new().with_condition(condition)).await {
                Ok(properties) => {
                    if let Some(text) = present.and_then(|saved| saved.text) {
                        held.text = Arc::new(text);
                    }
                    held.saved = Some(properties.etag);
                    return Ok(DeliveryStart::Now);
                }
                Err(error) if is_raced(error.kind()) => present = self.read_saved(held).await?,
                Err(error) => return Err(error),
            }
        }
        Err(StoreError::new(Kind::Unavailable, "get messages", &held.queue)
            .with_detail("gave up after repeated conflicts: other processes keep updating this message"))
    }

    /// Saves the text of a message that is given back, and the time before which it must not be delivered.
    /// The text is left out if the message itself contains it, because the text of another program may be
    /// longer than a blob here. A saved text that cannot be read stays unchanged, for a version that can read
    /// it.
    pub(super) async fn save_given_back(
        &self,
        held: &HeldMessage,
        text: Option<&str>,
        not_before: Option<SystemTime>,
    ) -> Result<(), StoreError> {
        let (present, sent_text) = (&*held.text, &*held.sent_text);
        if text.is_none() && present.is_err() && present != sent_text {
            return Ok(());
        }
        let text = text.or(present.as_deref().ok()).filter(|text| sent_text.as_deref() != Ok(text));
        let text = text.map_or_else(String::new, |text| format!("\n{text}"));
        let time = not_before.map_or_else(String::new, |at| format!(" {}", millis(at)));
        self.write(held, &format!("{}{time}{text}", held.fence)).await.map(drop)
    }
}
