//! The facts about queues that a process has found out.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::super::cache::Perishable;
use super::super::error::Fault;
use super::super::place::Place;
use super::requires_session::PATIENCE;
use super::{ServiceBusQueues, advice};
use jobqueue_storage::sync::lock;
use jobqueue_storage::{Operation, QueueName, StoreError};

const MAX_LOCK: Duration = Duration::from_secs(300);
/// The interval at which a process asks whether others save texts for messages of a queue.
const TEXTS_CHECK: Duration = Duration::from_secs(60);
/// The longest time for the answer.
const TEXTS_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval at which a process that saves texts notes that, and one that looks for them asks whether that was noted.
const NOTE_PERIOD: Duration = Duration::from_secs(3600);
/// The pause before settings that could not be read are asked for again.
const SETTINGS_PAUSE: Duration = Duration::from_secs(60);

/// The state of a queue and of its dead letters, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) lock_length: Option<Duration>,
    /// The time at which a get has last asked for the settings.
    settings_asked: Option<Instant>,
    /// True once such a get had them.
    are_settings_read: bool,
    /// True once the service has said that it has no transactions for the queue.
    pub(super) lacks_transactions: bool,
    /// The time at which this process has last noted that it saves texts.
    noted: Option<Instant>,
    /// Shared with what holds each message that is kept back for the blobs.
    pub(super) kept_back: Arc<()>,
}

/// True if texts are saved for messages of a queue, and until when that need not be asked again.
#[derive(Debug, Clone, Copy)]
pub(super) struct SavesTexts(bool, Instant);

impl SavesTexts {
    fn asked(saves: bool, asked: Instant) -> Self {
        Self(saves, asked + if saves { NOTE_PERIOD } else { TEXTS_CHECK })
    }
}

impl Perishable for SavesTexts {
    fn is_gone(&self) -> bool {
        self.1 <= Instant::now()
    }
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

    /// Reads the settings of a queue, or those of the queue of dead letters, unless a get has read them before: warns of those that contradict
    /// the framework, and notes the length of its locks. Settings that could not be read are asked for again now and then.
    pub(super) async fn read_settings(&self, queue: &QueueName) {
        let (asked, is_read) = self.facts(queue, |facts| (facts.settings_asked, facts.are_settings_read));
        if is_read || asked.is_some_and(|asked| asked.elapsed() < SETTINGS_PAUSE) {
            return;
        }
        let Ok(queue) = QueueName::new(Place::of(queue).queue) else { return };
        self.facts(&queue, |facts| facts.settings_asked = Some(Instant::now()));
        // In a task, because the management API may not answer.
        let queues = self.clone();
        let reading = self.links.runtime().spawn(async move {
            let is_read = advice::log_advice(&queues, &queue).await;
            queues.facts(&queue, |facts| facts.are_settings_read |= is_read);
        });
        // Without the claim Manage the length is never known: only the first get waits.
        if asked.is_none() {
            let _ = timeout(PATIENCE, reading).await;
        }
    }

    /// Returns the length of the locks in a queue, or the longest there is while it could not be read. A clock that is behind the service's would
    /// take them for longer.
    pub(super) fn lock_length(&self, queue: &QueueName) -> Duration {
        self.facts(queue, |facts| facts.lock_length).unwrap_or(MAX_LOCK)
    }

    /// Returns whether a text may have been saved for a message of the queue that comes for the first time by the service's count.
    ///
    /// # Errors
    /// Those of the blobs, if there is no recent answer.
    pub(super) async fn saves_texts(&self, queue: &QueueName) -> Result<bool, StoreError> {
        let ask = || {
            let (queues, queue) = (self.clone(), queue.clone());
            async move { queues.ask_for_texts(&queue).await }
        };
        let found = self.saves_texts.get(self.links.runtime(), Place::of(queue).queue, ask).await;
        found.map(|found| found.0).map_err(|fault| fault.of_read(Operation::Get.as_str(), queue))
    }

    async fn ask_for_texts(&self, queue: &QueueName) -> Result<SavesTexts, Fault> {
        let asked = Instant::now();
        let answer = timeout(TEXTS_TIMEOUT, self.beside.saves_texts(queue)).await;
        let answer = answer.map_err(|_| Fault::not_sent("the blobs do not answer"))?;
        let saves = answer.map_err(|error| Fault::Blobs(Arc::new(error)))?;
        // This process may have noted that meanwhile, after the blobs were read.
        let is_noted = self.facts(queue, |facts| facts.noted.is_some_and(|noted| noted >= asked));
        Ok(SavesTexts::asked(saves || is_noted, asked))
    }

    /// Notes that a text is about to be saved for a message of the queue, so that all processes look for texts.
    pub(super) async fn note_saving(&self, queue: &QueueName) -> Result<(), StoreError> {
        let noted = self.facts(queue, |facts| facts.noted);
        if noted.is_none_or(|noted| noted.elapsed() >= NOTE_PERIOD) {
            self.beside.note_saving(queue).await.map_err(|error| error.with_ambiguous(false))?;
            let now = Instant::now();
            self.facts(queue, |facts| facts.noted = Some(now));
            self.saves_texts.set(Place::of(queue).queue, SavesTexts::asked(true, now));
        }
        Ok(())
    }
}
