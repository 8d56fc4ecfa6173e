//! Looking at dead letters, and the way back.

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::bury::{UNREADABLE_KIND, unwrap_unreadable};
use super::channel::Channel;
use crate::envelope::{Envelope, Parsed, parse, to_wire};
use crate::storage::{
    GetMessages, Late, LeasedMessage, MAX_MESSAGES, MessageRef, PutMessage, StoreErrorKind, UpdateMessage,
};
use crate::vocabulary::error::{Error, ErrorKind};
use crate::vocabulary::message::QueueMessage;
use crate::vocabulary::name::QueueName;

/// How long dead letters are held during a redrive: they are invisible to other redrives meanwhile.
const HOLD: Duration = Duration::from_secs(600);
/// The most earlier dead letters of a job that are remembered.
const MAX_PAST: usize = 10;

/// A message in a dead-letter queue.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The job's id.
    pub id: String,
    /// The kind.
    pub kind: String,
    /// Why: a code, see [`Reason`](crate::Reason).
    pub reason: String,
    /// The queue it came from.
    pub queue: String,
    /// When it was dead-lettered (RFC 3339).
    pub time: String,
    /// What went wrong, with its causes.
    pub error: Option<String>,
    /// Failed attempts.
    pub attempts: u32,
    /// How often it had been dequeued.
    pub deliveries: u32,
    /// Which worker dead-lettered it.
    pub worker: Option<String>,
    /// The trace it was sent in.
    pub trace: Option<String>,
    /// What it is about.
    pub key: Option<String>,
    /// Earlier dead letters of the same job, before it was redriven: a JSON list.
    pub past: Option<String>,
}

impl DeadLetter {
    fn of(envelope: &Envelope) -> Self {
        let note = envelope.dead_letter.as_ref();
        Self {
            id: envelope.id.clone(),
            kind: envelope.kind.clone(),
            reason: note.map_or_else(|| "unknown".to_owned(), |note| note.reason.clone()),
            queue: note.map(|note| note.queue.clone()).unwrap_or_default(),
            time: note.map(|note| note.time.clone()).unwrap_or_default(),
            error: envelope.history.last_error.clone(),
            attempts: envelope.history.attempts,
            deliveries: note.map_or(0, |note| note.deliveries),
            worker: note.and_then(|note| note.worker.clone()),
            trace: envelope.traceparent.clone(),
            key: envelope.subject.clone(),
            past: envelope.history.past.clone(),
        }
    }
}

impl fmt::Debug for DeadLetter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetter")
            .field("id", &self.id)
            .field("kind", &self.kind)
            .field("reason", &self.reason)
            .field("attempts", &self.attempts)
            .field("time", &self.time)
            .finish_non_exhaustive()
    }
}

type Filter = dyn Fn(&DeadLetter) -> bool + Send + Sync;

/// Which dead letters are put back, and how fast.
#[derive(Clone, Default)]
pub struct RedriveOptions {
    filter: Option<Arc<Filter>>,
    limit: Option<usize>,
    per_second: Option<u32>,
    dry_run: bool,
}

impl RedriveOptions {
    /// All, as fast as possible.
    pub fn all() -> Self {
        Self::default()
    }

    /// Only those for which `filter` says true.
    #[must_use]
    pub fn filter(mut self, filter: impl Fn(&DeadLetter) -> bool + Send + Sync + 'static) -> Self {
        self.filter = Some(Arc::new(filter));
        self
    }

    /// At most `limit`.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = Some(limit);
        self
    }

    /// At most this many a second, so that what comes back does not overwhelm the workers.
    #[must_use]
    pub fn per_second(mut self, rate: u32) -> Self {
        self.per_second = Some(rate.max(1));
        self
    }

    /// Only tells what would be put back.
    #[must_use]
    pub fn dry_run(mut self) -> Self {
        self.dry_run = true;
        self
    }

    fn picks(&self, letter: &DeadLetter) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter(letter))
    }
}

impl fmt::Debug for RedriveOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedriveOptions")
            .field("filtered", &self.filter.is_some())
            .field("limit", &self.limit)
            .field("per_second", &self.per_second)
            .field("dry_run", &self.dry_run)
            .finish()
    }
}

/// What a redrive or purge did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct Redriven {
    /// The ids of the jobs that were put back (or deleted, or would be).
    pub moved: Vec<String>,
    /// How many were looked at and left.
    pub left: usize,
}

/// The dead-letter queue of a queue: `<queue>-poison`.
///
/// Dead letters never expire. Redriving keeps the job's id and its history and gives it all its attempts again. It is
/// idempotent by id: after a crash in the middle a job may be in both queues, and effects are idempotent by id.
pub struct DeadLetters<M> {
    channel: Arc<Channel>,
    name: QueueName,
    message: PhantomData<fn() -> M>,
}

impl<M: QueueMessage> DeadLetters<M> {
    pub(super) fn new(channel: Arc<Channel>) -> Result<Self, Error> {
        let name = channel.name.dead_letter()?;
        Ok(Self { channel, name, message: PhantomData })
    }

    /// The name of the dead-letter queue.
    pub fn name(&self) -> &QueueName {
        &self.name
    }

    /// About how many there are; 0 if the dead-letter queue does not exist yet.
    ///
    /// # Errors
    /// What the storage says.
    pub async fn len(&self) -> Result<u64, Error> {
        match self.channel.store().queue_properties(&self.name).await {
            Ok(properties) => Ok(properties.approximate_count),
            Err(e) if e.kind() == StoreErrorKind::QueueNotFound => Ok(0),
            Err(e) => Err(e.into()),
        }
    }

    /// Whether there are none.
    ///
    /// # Errors
    /// What the storage says.
    pub async fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.len().await? == 0)
    }

    /// Looks at the first dead letters, at most 32, without changing anything.
    ///
    /// # Errors
    /// What the storage says.
    pub async fn peek(&self) -> Result<Vec<DeadLetter>, Error> {
        let peeked = match self.channel.store().peek(&self.name, MAX_MESSAGES).await {
            Ok(peeked) => peeked,
            Err(e) if e.kind() == StoreErrorKind::QueueNotFound => return Ok(Vec::new()),
            Err(e) => return Err(e.into()),
        };
        let mut seen = HashSet::new();
        let envelopes = peeked.iter().filter_map(|message| event(message.text.as_deref().ok()));
        Ok(envelopes
            .map(|envelope| DeadLetter::of(&envelope))
            .filter(|l| seen.insert(l.id.clone()))
            .collect())
    }

    /// Reads all dead letters. They are invisible to others while it reads, for at most 10 minutes, and visible again
    /// afterwards.
    ///
    /// # Errors
    /// What the storage says.
    pub async fn list(&self) -> Result<Vec<DeadLetter>, Error> {
        let mut found = Vec::new();
        let _ =
            self.sweep(&RedriveOptions::all().dry_run(), &mut |letter| found.push(letter.clone())).await?;
        Ok(found)
    }

    /// Puts dead letters back into the queue they came from.
    ///
    /// # Errors
    /// What the storage says. What was put back until then stays so.
    ///
    /// # Cancel safety
    /// If the future is dropped, dead letters it held come back after at most 10 minutes.
    pub async fn redrive(&self, options: RedriveOptions) -> Result<Redriven, Error> {
        self.sweep(&options, &mut |_| {}).await
    }

    /// Deletes the dead letters for which `filter` says true, with their payloads.
    ///
    /// # Errors
    /// What the storage says.
    pub async fn purge(
        &self,
        filter: impl Fn(&DeadLetter) -> bool + Send + Sync + 'static,
    ) -> Result<Redriven, Error> {
        let options = RedriveOptions::all().filter(filter);
        self.each(&options, Action::Delete, &mut |_| {}).await
    }

    async fn sweep(
        &self,
        options: &RedriveOptions,
        tell: &mut (dyn FnMut(&DeadLetter) + Send),
    ) -> Result<Redriven, Error> {
        let action = if options.dry_run { Action::Tell } else { Action::PutBack };
        self.each(options, action, tell).await
    }

    async fn each(
        &self,
        options: &RedriveOptions,
        action: Action,
        tell: &mut (dyn FnMut(&DeadLetter) + Send),
    ) -> Result<Redriven, Error> {
        let mut done = Redriven::default();
        let mut held: Vec<MessageRef> = Vec::new();
        let result = self.each_held(options, action, tell, &mut done, &mut held).await;
        // What was only looked at becomes visible again.
        for message in held {
            let release = UpdateMessage { visibility: Duration::ZERO, text: None, late: Late::IfUnclaimed };
            if let Err(error) = self.channel.store().update(&self.name, &message, release).await {
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
        done: &mut Redriven,
        held: &mut Vec<MessageRef>,
    ) -> Result<(), Error> {
        let store = self.channel.store();
        let mut seen = HashSet::new();
        let mut next = Instant::now();
        loop {
            let get = GetMessages { count: MAX_MESSAGES, visibility: HOLD };
            let received = match store.get(&self.name, get).await {
                Ok(received) => received.messages,
                Err(e) if e.kind() == StoreErrorKind::QueueNotFound => return Ok(()),
                Err(e) => return Err(e.into()),
            };
            if received.is_empty() {
                return Ok(());
            }
            for leased in received {
                let envelope = event(leased.text.as_deref().ok());
                let full = options.limit.is_some_and(|limit| done.moved.len() >= limit);
                let Some(envelope) = envelope.filter(|_| !full) else {
                    done.left += 1;
                    held.push(leased.message);
                    continue;
                };
                let letter = DeadLetter::of(&envelope);
                if !options.picks(&letter) {
                    done.left += 1;
                    held.push(leased.message);
                    continue;
                }
                let twin = !seen.insert(letter.id.clone());
                match action {
                    Action::Tell => held.push(leased.message),
                    _ if twin => self.delete(leased.message).await?,
                    Action::Delete => self.discard(leased, &envelope).await?,
                    Action::PutBack => {
                        if let Some(rate) = options.per_second {
                            tokio::time::sleep_until(next).await;
                            next = next.max(Instant::now()) + Duration::from_secs(1) / rate;
                        }
                        self.put_back(leased, envelope).await?;
                    }
                }
                if !twin {
                    tell(&letter);
                    done.moved.push(letter.id);
                }
            }
            if options.limit.is_some_and(|limit| done.moved.len() >= limit) {
                return Ok(());
            }
        }
    }

    async fn put_back(&self, leased: LeasedMessage, envelope: Envelope) -> Result<(), Error> {
        let home = envelope.dead_letter.as_ref().map(|note| note.queue.clone());
        let home = home.map_or_else(|| Ok(self.channel.name.clone()), QueueName::new)?;
        let text = self.revived(envelope).await?;
        self.channel.store().put(&home, PutMessage::new(text)).await?;
        self.delete(leased.message).await
    }

    /// The text with which a dead letter begins anew.
    async fn revived(&self, mut envelope: Envelope) -> Result<String, Error> {
        if envelope.kind == UNREADABLE_KIND {
            let data =
                self.channel.claim_checks.payload(&self.name, &envelope.payload).await.map_err(|e| {
                    Error::new(ErrorKind::Undecodable, "the payload of a dead letter cannot be had")
                        .with_source(e)
                })?;
            let text = unwrap_unreadable(&envelope, &data);
            return text.ok_or_else(|| {
                Error::new(ErrorKind::Undecodable, "the text of an unreadable message was not kept")
            });
        }
        if let Some(note) = envelope.dead_letter.take() {
            let mut past: Vec<serde_json::Value> = envelope
                .history
                .past
                .as_deref()
                .and_then(|past| serde_json::from_str(past).ok())
                .unwrap_or_default();
            past.push(serde_json::json!({
                "reason": note.reason, "time": note.time, "worker": note.worker,
                "attempts": envelope.history.attempts, "deliveries": note.deliveries,
                "error": envelope.history.last_error,
            }));
            let excess = past.len().saturating_sub(MAX_PAST);
            envelope.history.past = serde_json::to_string(&past[excess..]).ok();
        }
        // The new message counts its deliveries from zero.
        envelope.history.attempts = 0;
        envelope.history.excused = 0;
        envelope.history.deferred = 0;
        let encoding = self.channel.settings().encoding;
        Ok(to_wire(envelope.to_json()?, encoding))
    }

    async fn discard(&self, leased: LeasedMessage, envelope: &Envelope) -> Result<(), Error> {
        self.delete(leased.message).await?;
        for reference in super::claimed::references(envelope) {
            self.channel.claim_checks.remove(&reference).await?;
        }
        Ok(())
    }

    async fn delete(&self, message: MessageRef) -> Result<(), Error> {
        match self.channel.store().delete(&self.name, &message, Late::IfUnclaimed).await {
            Err(e) if e.kind() != StoreErrorKind::MessageNotFound => Err(e.into()),
            _ => Ok(()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Tell,
    PutBack,
    Delete,
}

fn event(text: Option<&str>) -> Option<Envelope> {
    match parse(text?) {
        Ok(Parsed::Event(envelope)) => Some(*envelope),
        _ => None,
    }
}

impl<M> fmt::Debug for DeadLetters<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeadLetters").field(&self.name).finish()
    }
}
