//! The facts about queues that a process has found out.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::super::place::Place;
use super::ServiceBusQueues;
use super::requires_session::SessionsAsked;
use jobqueue_storage::sync::lock;
use jobqueue_storage::{QueueName, StoreError};

const MAX_LOCK: Duration = Duration::from_secs(300);
/// The interval at which a process asks whether others save texts for messages of a queue.
const TEXTS_CHECK: Duration = Duration::from_secs(60);
/// The interval at which a process that saves texts notes that, and one that looks for them asks whether that was noted.
const NOTE_PERIOD: Duration = Duration::from_secs(3600);
/// The pause before the length of locks is asked for again.
const LENGTH_PAUSE: Duration = Duration::from_secs(60);

/// The state of a queue and of its dead letters, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// True once the settings were compared with those of the framework.
    pub(super) is_checked: bool,
    /// What was found out about its sessions, or is about to be.
    pub(super) sessions: Option<SessionsAsked>,
    pub(super) lock_length: Option<Duration>,
    /// The time at which that was last asked for.
    length_asked: Option<Instant>,
    /// True once the service has said that it has no transactions for the queue.
    pub(super) lacks_transactions: bool,
    /// True if texts are saved for its messages, and when that was asked.
    saves_texts: Option<(bool, Instant)>,
    /// The time at which this process has last noted that it saves some.
    noted: Option<Instant>,
    /// Shared with what holds each message that is kept back for the blobs.
    pub(super) kept_back: Arc<()>,
}

impl ServiceBusQueues {
    /// Reads or changes what is known of a queue.
    pub(super) fn facts<R>(&self, queue: &QueueName, with: impl FnOnce(&mut Facts) -> R) -> R {
        with(lock(&self.facts).entry(Place::of(queue).queue.to_owned()).or_default())
    }

    /// Returns whether this process keeps messages of the queue or its dead letters back. Then a get that finds none does not say that none is
    /// there.
    pub(super) fn is_keeping_back(&self, queue: &QueueName) -> bool {
        self.facts(queue, |facts| Arc::strong_count(&facts.kept_back) > 1)
    }

    /// Returns the length of the locks in a queue. A clock that is behind the service's would take them for longer. While the settings could not
    /// be read, it returns the longest length there is, and asks for them now and then.
    pub(super) fn lock_length(&self, queue: &QueueName) -> Duration {
        let (known, is_due) = self.facts(queue, |facts| {
            let is_due = facts.length_asked.is_none_or(|asked| asked.elapsed() >= LENGTH_PAUSE);
            if is_due && facts.lock_length.is_none() {
                facts.length_asked = Some(Instant::now());
            }
            (facts.lock_length, is_due)
        });
        if known.is_none() && is_due {
            let (entities, facts) = (Arc::clone(&self.entities), Arc::clone(&self.facts));
            let name = Place::of(queue).queue.to_owned();
            drop(self.links.runtime().spawn(async move {
                if let Ok(Some(description)) = entities.describe(&name).await {
                    lock(&facts).entry(name).or_default().lock_length = description.lock_duration;
                }
            }));
        }
        known.unwrap_or(MAX_LOCK)
    }

    /// Returns whether a text may have been saved for a message of the queue that comes for the first time by the service's count.
    pub(super) async fn saves_texts(&self, queue: &QueueName) -> Result<bool, StoreError> {
        let known = self.facts(queue, |facts| facts.saves_texts);
        let good_for = |saves| if saves { NOTE_PERIOD } else { TEXTS_CHECK };
        if let Some((saves, _)) = known.filter(|(saves, asked)| asked.elapsed() < good_for(*saves)) {
            return Ok(saves);
        }
        let asked = Instant::now();
        let saves = match (self.beside.saves_texts(queue).await, known) {
            // While the blobs cannot be reached, nothing is saved there.
            (Err(_), Some((saves, _))) => saves,
            (found, _) => found?,
        };
        self.facts(queue, |facts| {
            // This process may have noted that meanwhile.
            if facts.saves_texts.is_none_or(|(_, known)| known <= asked) {
                facts.saves_texts = Some((saves, asked));
            }
        });
        Ok(saves)
    }

    /// Notes that a text is about to be saved for a message of the queue, so that all processes look for texts.
    pub(super) async fn note_saving(&self, queue: &QueueName) -> Result<(), StoreError> {
        let noted = self.facts(queue, |facts| facts.noted);
        if noted.is_none_or(|noted| noted.elapsed() >= NOTE_PERIOD) {
            self.beside.note_saving(queue).await.map_err(|error| error.with_ambiguous(false))?;
            let now = Instant::now();
            self.facts(queue, |facts| (facts.noted, facts.saves_texts) = (Some(now), Some((true, now))));
        }
        Ok(())
    }
}
