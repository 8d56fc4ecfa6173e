//! Going through a dead-letter queue: holding its messages, and looking at, moving or deleting each.

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::Instant;

use super::DeadLetters;
use super::letter::{DeadLetter, DeadLetterEntry};
use super::options::{RedriveOptions, RedriveReport};
use super::past;
use crate::envelope::{Envelope, to_wire};
use crate::error::{Error, ErrorKind};
use crate::message::QueueMessage;
use crate::name::QueueName;
use crate::queue::dead_letter::{UNREADABLE_KIND, unwrap_unreadable};
use crate::queue::read::payload_error;
use crate::storage::{
    ExpiredReceipt, GetMessages, MAX_MESSAGES, MessageRef, PutMessage, StoreErrorKind, UpdateMessage,
};

/// How long dead letters are held during a redrive: they are invisible to other redrives meanwhile.
const HOLD: Duration = Duration::from_secs(600);

/// What is done with the dead letters that are picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Tell,
    PutBack,
    Delete,
}

impl<M: QueueMessage> DeadLetters<M> {
    pub(super) async fn sweep(
        &self,
        options: &RedriveOptions,
        tell: &mut (dyn FnMut(&DeadLetter) + Send),
    ) -> Result<RedriveReport, Error> {
        let action = if options.dry_run { Action::Tell } else { Action::PutBack };
        self.each(options, action, tell).await
    }

    pub(super) async fn each(
        &self,
        options: &RedriveOptions,
        action: Action,
        tell: &mut (dyn FnMut(&DeadLetter) + Send),
    ) -> Result<RedriveReport, Error> {
        let mut done = RedriveReport::default();
        let mut held: Vec<MessageRef> = Vec::new();
        let result = self.each_held(options, action, tell, &mut done, &mut held).await;
        // What was only looked at becomes visible again.
        for message in held {
            let release =
                UpdateMessage { visibility: Duration::ZERO, text: None, expired: ExpiredReceipt::Allow };
            if let Err(error) = self.core.store().update(&self.name, &message, release).await {
                tracing::debug!(queue = %self.name, %error, "dead letter stays invisible for up to 10 minutes");
            }
        }
        result.map(|()| done)
    }

    async fn each_held(
        &self,
        options: &RedriveOptions,
        action: Action,
        tell: &mut (dyn FnMut(&DeadLetter) + Send),
        done: &mut RedriveReport,
        held: &mut Vec<MessageRef>,
    ) -> Result<(), Error> {
        let store = self.core.store();
        let (mut jobs, mut messages) = (HashSet::new(), HashSet::new());
        let mut next = Instant::now();
        loop {
            let get = GetMessages { count: MAX_MESSAGES, visibility: HOLD };
            let received = match store.get(&self.name, get).await {
                Ok(received) => received.messages,
                Err(e) if e.kind() == StoreErrorKind::QueueNotFound => return Ok(()),
                Err(e) => return Err(e.into()),
            };
            // Of many, the first may have come back before the last was seen: then all were.
            if received.iter().all(|leased| messages.contains(&leased.message.id)) {
                held.extend(received.into_iter().map(|leased| leased.message));
                return Ok(());
            }
            for leased in received {
                if !messages.insert(leased.message.id.clone()) {
                    held.push(leased.message);
                    continue;
                }
                let full = options.limit.is_some_and(|limit| done.moved.len() as u64 >= limit);
                let Some(text) = leased.text.as_deref().ok().filter(|_| !full) else {
                    done.left += 1;
                    held.push(leased.message);
                    continue;
                };
                let dead_lettered = DeadLetterEntry::read(text);
                let letter = self.letter(&dead_lettered, text, &leased.message.id, leased.inserted);
                if !options.picks(&letter) {
                    done.left += 1;
                    held.push(leased.message);
                    continue;
                }
                let twin = !jobs.insert(letter.id.clone());
                match action {
                    Action::Tell => held.push(leased.message),
                    _ if twin => self.delete(leased.message).await?,
                    Action::Delete => self.discard(leased.message, &dead_lettered).await?,
                    Action::PutBack => {
                        if let Some(rate) = options.per_second {
                            tokio::time::sleep_until(next).await;
                            next = next.max(Instant::now()) + Duration::from_secs(1) / rate;
                        }
                        self.put_back(leased.message, dead_lettered, &letter.text).await?;
                    }
                }
                if !twin {
                    tell(&letter);
                    done.moved.push(letter.id);
                }
            }
            if options.limit.is_some_and(|limit| done.moved.len() as u64 >= limit) {
                return Ok(());
            }
        }
    }

    async fn put_back(
        &self,
        message: MessageRef,
        dead_lettered: DeadLetterEntry,
        text: &str,
    ) -> Result<(), Error> {
        let envelope = match dead_lettered {
            DeadLetterEntry::Event(envelope) => *envelope,
            DeadLetterEntry::Foreign => {
                self.core.store().put(&self.core.name, PutMessage::new(text)).await?;
                return self.delete(message).await;
            }
        };
        let home = envelope.dead_letter.as_ref().map(|note| note.queue.clone());
        let home = home.map_or_else(|| Ok(self.core.name.clone()), QueueName::new)?;
        let key = envelope.subject.clone();
        let text = self.revived(envelope).await?;
        self.core.store().put(&home, PutMessage::new(text).with_shard_key(key)).await?;
        self.delete(message).await
    }

    /// The text that was kept as it was because it could not be read as a job; `None` if this is a job.
    pub(super) async fn kept_text(&self, envelope: &Envelope) -> Result<Option<String>, Error> {
        if *envelope.kind != *UNREADABLE_KIND {
            return Ok(None);
        }
        let data = self.core.claim_checks.payload(&self.name, &envelope.payload).await;
        let text = unwrap_unreadable(envelope, &data.map_err(payload_error)?);
        text.map(Some).ok_or_else(|| {
            Error::new(ErrorKind::Undecodable, "the text of an unreadable message was not kept")
        })
    }

    /// The text with which a dead letter begins anew.
    async fn revived(&self, mut envelope: Envelope) -> Result<String, Error> {
        if let Some(text) = self.kept_text(&envelope).await? {
            return Ok(text);
        }
        if let Some(note) = envelope.dead_letter.take() {
            past::add(&mut envelope.history, note);
        }
        // The new message counts its deliveries from zero.
        envelope.history.attempts = 0;
        envelope.history.uncounted = 0;
        envelope.history.delivery = 0;
        envelope.history.deferral = None;
        let encoding = self.core.settings().encoding;
        Ok(to_wire(envelope.to_json()?, encoding))
    }

    async fn discard(&self, message: MessageRef, dead_lettered: &DeadLetterEntry) -> Result<(), Error> {
        self.delete(message).await?;
        let DeadLetterEntry::Event(envelope) = dead_lettered else { return Ok(()) };
        for reference in crate::queue::leased_job::references(envelope) {
            self.core.claim_checks.remove(&self.name, &reference).await?;
        }
        Ok(())
    }

    async fn delete(&self, message: MessageRef) -> Result<(), Error> {
        match self.core.store().delete(&self.name, &message, ExpiredReceipt::Allow).await {
            Err(e) if e.kind() != StoreErrorKind::MessageNotFound => Err(e.into()),
            _ => Ok(()),
        }
    }
}
