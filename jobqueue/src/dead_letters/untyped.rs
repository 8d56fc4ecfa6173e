//! The dead-letter queue of a queue, independent of the message type: the part that `DeadLetters<M>` and the
//! operator's view share.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::letter::{DeadLetter, event_of};
use crate::envelope::Envelope;
use crate::error::{Error, ErrorKind};
use crate::queue_core::QueueCore;
use crate::storage::{
    DeadLetterCause, MAX_MESSAGES, MessageId, MessageState, PeekedMessage, QueueName, StoreError,
    StoreErrorKind,
};

/// The number of letters that a search reads at once.
const PAGE: u32 = 1_000;
/// The time after which a search of a [log](crate::storage::MessageLog) ends. Its storage reads at most a few
/// hundred messages a second.
pub const LOG_SEARCH_TIME: Duration = Duration::from_secs(2);
/// The states of letters, in an order in which a search misses no letter that moves once. Another reader may
/// put a letter back during the search, or receive it.
const BY_STATE: [MessageState; 5] = [
    MessageState::Running,
    MessageState::BackingOff,
    MessageState::Delayed,
    MessageState::Waiting,
    MessageState::Running,
];

pub(crate) struct StorageRecord<'l> {
    /// The id that the message had in its queue if it is known, else the id of the letter.
    pub(crate) id: &'l MessageId,
    pub(crate) inserted: SystemTime,
    pub(crate) cause: Option<&'l DeadLetterCause>,
}

/// The first letters of a queue.
#[derive(Debug, Default)]
pub struct PeekedLetters {
    /// The letters, without copies of earlier ones.
    pub letters: Vec<DeadLetter>,
    /// The number of letters, copies included.
    pub looked_at: u64,
    /// The end of these letters, if there may be more and the storage shows every message.
    pub next: Option<String>,
    /// True if there may be letters that no page shows, or one could not be read as it is.
    pub is_partial: bool,
}

/// The letters that a search has looked at.
#[derive(Debug)]
pub struct SearchedLetters {
    /// The number of letters with all copies.
    pub looked_at: u64,
    /// True if all letters were looked at, also those that others hold. A letter that others have received
    /// and put back during the search may be missing.
    pub complete: bool,
}

/// Messages of a dead-letter queue.
struct ListedLetters {
    messages: Vec<PeekedMessage>,
    next: Option<String>,
    /// As in [`PeekedLetters`].
    is_partial: bool,
}

/// The dead-letter queue of a queue.
#[derive(Debug)]
pub struct DeadLetterQueue {
    pub(crate) core: Arc<QueueCore>,
    pub(crate) name: QueueName,
    /// The kind that is shown for letters without a kind.
    external_kind: &'static str,
}

impl DeadLetterQueue {
    pub(crate) fn new(core: Arc<QueueCore>, external_kind: &'static str) -> Result<Self, Error> {
        let name = core.name.dead_letter()?;
        Ok(Self { core, name, external_kind })
    }

    pub(crate) fn name(&self) -> &QueueName {
        &self.name
    }

    /// Returns the approximate number of letters; 0 if the queue does not exist yet.
    pub async fn count(&self) -> Result<u64, Error> {
        match self.core.store().queue_properties(&self.name).await {
            Ok(properties) => Ok(properties.approximate_count),
            Err(e) if e.kind() == StoreErrorKind::QueueNotFound => Ok(0),
            Err(e) => Err(e.into()),
        }
    }

    /// Returns the approximate number of letters; `None` if the storage cannot count them.
    pub async fn known_count(&self) -> Result<Option<u64>, Error> {
        match self.count().await {
            Err(error) if is_unsupported(&error) => Ok(None),
            counted => counted.map(Some),
        }
    }

    /// Reads the first letters, at most 32, without changing anything.
    pub async fn peek(&self) -> Result<PeekedLetters, Error> {
        let peeked = match self.core.store().peek(&self.name, MAX_MESSAGES).await {
            Ok(peeked) => peeked,
            Err(e) if e.kind() == StoreErrorKind::QueueNotFound => return Ok(PeekedLetters::default()),
            Err(e) => return Err(e.into()),
        };
        Ok(self.without_copies(peeked.iter()))
    }

    /// Reads up to `count` visible letters, from the first or from the [end](PeekedLetters::next) of an
    /// earlier page, without changing anything. Where the storage does not show every message, these are the
    /// letters of a [`peek`](Self::peek).
    pub async fn page(&self, from: Option<&str>, count: u32) -> Result<PeekedLetters, Error> {
        let page = match self.list(MessageState::Waiting, from, count).await {
            Ok(Some(page)) => page,
            Ok(None) => return self.peek().await,
            Err(e) if e.kind() == StoreErrorKind::QueueNotFound => return Ok(PeekedLetters::default()),
            Err(e) if e.kind() == StoreErrorKind::InvalidInput && from.is_some() => {
                let text = "no page of dead letters ended at the place where this one is to begin";
                return Err(Error::new(ErrorKind::Invalid, text).with_source(e));
            }
            Err(e) => return Err(e.into()),
        };
        let letters = self.without_copies(page.messages.iter());
        Ok(PeekedLetters { next: page.next, is_partial: page.is_partial, ..letters })
    }

    /// Returns messages of one state, or of all if the storage has a log. Returns `None` where the storage
    /// does not show every message.
    async fn list(
        &self,
        state: MessageState,
        from: Option<&str>,
        count: u32,
    ) -> Result<Option<ListedLetters>, StoreError> {
        let powers = self.core.store().powers();
        if let Some(index) = &powers.index {
            let page = index.messages(&self.name, state, from, count).await?;
            let messages = page.messages.into_iter().map(|(message, _)| message).collect();
            return Ok(Some(ListedLetters { messages, next: page.next, is_partial: false }));
        }
        let Some(log) = &powers.log else { return Ok(None) };
        let page = log.logged(&self.name, None, from, count).await?;
        let messages = page.messages.into_iter().map(|logged| logged.message).collect();
        Ok(Some(ListedLetters { messages, next: page.next, is_partial: page.is_partial }))
    }

    fn without_copies<'m>(
        &self,
        messages: impl ExactSizeIterator<Item = &'m PeekedMessage>,
    ) -> PeekedLetters {
        let (mut seen, looked_at) = (HashSet::new(), messages.len() as u64);
        let letters = messages.map(|message| self.shown(message));
        let letters = letters.filter(|letter| letter.death.clone().is_none_or(|death| seen.insert(death)));
        PeekedLetters { letters: letters.collect(), looked_at, next: None, is_partial: false }
    }

    /// Passes the letters to `select`, up to about `max` of each state of their messages, without changing
    /// anything. `select` returns whether it takes a letter; copies of a letter that it has taken are not
    /// passed to it. A search of a log ends after some seconds. Returns `None` where the storage does not show
    /// every message.
    pub async fn search(
        &self,
        max: usize,
        mut select: impl FnMut(&DeadLetter) -> bool + Send,
    ) -> Result<Option<SearchedLetters>, Error> {
        let (begun, has_index) = (Instant::now(), self.core.store().powers().index.is_some());
        let (mut seen, mut deaths) = (HashSet::new(), HashSet::new());
        let mut found = SearchedLetters { looked_at: 0, complete: true };
        // A page of a log has the messages of all states.
        for state in BY_STATE.into_iter().take(if has_index { BY_STATE.len() } else { 1 }) {
            let (mut from, mut searched) = (None::<String>, 0);
            loop {
                let page = match self.list(state, from.as_deref(), PAGE).await {
                    Ok(Some(page)) => page,
                    Ok(None) => return Ok(None),
                    Err(e) if e.kind() == StoreErrorKind::QueueNotFound => return Ok(Some(found)),
                    Err(e) => return Err(e.into()),
                };
                searched += page.messages.len();
                found.complete &= !page.is_partial;
                for message in page.messages.iter().filter(|message| seen.insert(message.id.clone())) {
                    let letter = self.shown(message);
                    let is_copy = letter.death.as_ref().is_some_and(|death| deaths.contains(death));
                    if !is_copy && select(&letter) {
                        deaths.extend(letter.death);
                    }
                }
                from = page.next;
                let is_over = searched >= max || !has_index && begun.elapsed() >= LOG_SEARCH_TIME;
                if from.is_none() || is_over {
                    found.complete &= from.is_none();
                    break;
                }
            }
        }
        found.looked_at = seen.len() as u64;
        Ok(Some(found))
    }

    fn shown(&self, message: &PeekedMessage) -> DeadLetter {
        let id = message.original_id.as_ref().unwrap_or(&message.id);
        let record = StorageRecord { id, inserted: message.inserted, cause: message.dead.as_ref() };
        match message.text.as_deref() {
            Ok(text) => self.letter(event_of(text).as_deref(), text, record),
            Err(problem) => self.letter_without_text(problem, &record),
        }
    }

    pub(super) fn letter(
        &self,
        event: Option<&Envelope>,
        text: &str,
        record: StorageRecord<'_>,
    ) -> DeadLetter {
        let mut letter = match event {
            Some(event) => DeadLetter::of(event, text),
            None => {
                DeadLetter::external(record.id, record.inserted, self.external_kind, &self.core.name, text)
            }
        };
        letter.inserted = Some(record.inserted);
        match record.cause {
            Some(cause) => letter.moved_by_storage(cause, &self.core.name, record.inserted),
            None => letter,
        }
    }

    pub(super) fn letter_without_text(&self, problem: &str, record: &StorageRecord<'_>) -> DeadLetter {
        let (kind, queue) = (self.external_kind, &self.core.name);
        DeadLetter::without_text(record.id, record.inserted, kind, queue, problem)
    }

    /// Reads the text of a letter: the original text of a message that could not be read as a job; for any
    /// other letter, the text in the queue.
    pub(crate) async fn text(&self, letter: &DeadLetter) -> Result<String, Error> {
        if let Some(problem) = letter.text_problem() {
            return Err(unreadable(problem));
        }
        if let Some(event) = event_of(&letter.text)
            && let Some(text) = self.original_text(&event).await?
        {
            return Ok(text);
        }
        Ok(letter.text.clone())
    }
}

/// Returns the error for a letter whose text the storage cannot return.
pub(super) fn unreadable(problem: &str) -> Error {
    Error::new(ErrorKind::Undecodable, format!("the text of the dead letter cannot be read: {problem}"))
}

fn is_unsupported(error: &Error) -> bool {
    StoreError::in_chain(error).is_some_and(|cause| cause.kind() == StoreErrorKind::Unsupported)
}
