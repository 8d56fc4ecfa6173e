//! Facts about queues that this process has found out.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, timeout};

use super::super::cache::Expiring;
use super::super::error::Fault;
use super::super::place::Place;
use super::requires_session::DESCRIBE_TIMEOUT;
use super::{ServiceBusQueues, advice};
use jobqueue_storage::sync::lock;
use jobqueue_storage::{Operation, QueueName, StoreError};

const MAX_LOCK_LENGTH: Duration = Duration::from_secs(300);
/// The interval at which a process checks whether other processes save texts for messages of a queue.
const TEXTS_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// The time limit of that check.
const TEXTS_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval at which a process that saves texts renews its note, and at which a process that has found
/// the note checks it again.
const NOTE_PERIOD: Duration = Duration::from_secs(3600);
/// The pause before settings that could not be read are read again.
pub(super) const SETTINGS_PAUSE: Duration = Duration::from_secs(60);

/// The facts about a queue and its dead letters, as far as this process has found them out.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) lock_length: Option<Duration>,
    /// The time at which a get last requested the settings.
    settings_asked: Option<Instant>,
    /// True once such a request has succeeded.
    are_settings_read: bool,
    /// True once the service has reported that it has no transactions for the queue.
    pub(super) lacks_transactions: bool,
    /// The time at which this process last wrote its note that it saves texts.
    noted: Option<Instant>,
    /// Cloned for each message that is kept back because its blob cannot be read.
    pub(super) kept_back: Arc<()>,
}

/// True if texts are saved for messages of a queue, and until when this need not be checked again.
#[derive(Debug, Clone, Copy)]
pub(super) struct SavesTexts {
    saves: bool,
    check_at: Instant,
}

impl SavesTexts {
    fn asked(saves: bool, asked: Instant) -> Self {
        Self { saves, check_at: asked + if saves { NOTE_PERIOD } else { TEXTS_CHECK_INTERVAL } }
    }
}

impl Expiring for SavesTexts {
    fn is_gone(&self) -> bool {
        self.check_at <= Instant::now()
    }
}

impl ServiceBusQueues {
    /// Reads or changes the facts about a queue.
    pub(super) fn facts<R>(&self, queue: &QueueName, with: impl FnOnce(&mut Facts) -> R) -> R {
        with(lock(&self.facts).entry(Place::of(queue).queue.to_owned()).or_default())
    }

    /// Returns whether this process keeps back messages of the queue or of its dead letters. If so, a get
    /// that finds none does not prove that there are none.
    pub(super) fn is_keeping_back(&self, queue: &QueueName) -> bool {
        self.facts(queue, |facts| Arc::strong_count(&facts.kept_back) > 1)
    }

    /// Reads the settings of a queue, or of the queue that a dead-letter queue belongs to, unless a get has
    /// read them before. Warns of settings that conflict with the framework's, and stores the length of the
    /// locks. After a failure, they are read again from time to time.
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
        // Without the claim Manage the length is never known, so only the first get waits.
        if asked.is_none() {
            let _ = timeout(DESCRIBE_TIMEOUT, reading).await;
        }
    }

    /// Returns the length of the locks in a queue, or the service's maximum while it is unknown. It caps the
    /// time left of a lock, which a clock behind the service's would overestimate.
    pub(super) fn lock_length(&self, queue: &QueueName) -> Duration {
        self.facts(queue, |facts| facts.lock_length).unwrap_or(MAX_LOCK_LENGTH)
    }

    /// Returns the length of a lock that was renewed just now until a time of the service. A renewal begins
    /// the lock anew, so the lock has the length that was read, unless the service's time is known: if the
    /// lock ends earlier by that time, locks were shortened meanwhile.
    pub(super) fn renewed_lock_length(&self, queue: &QueueName, until: SystemTime) -> Duration {
        let clock = &self.links.clock;
        let left = || until.duration_since(clock.now()).unwrap_or_default();
        match self.facts(queue, |facts| facts.lock_length) {
            Some(length) if !clock.is_known() => length,
            length => left().min(length.unwrap_or(MAX_LOCK_LENGTH)),
        }
    }

    /// Returns whether a text may have been saved for a message that, by the service's count, is delivered
    /// for the first time.
    ///
    /// # Errors
    /// The errors of the blob storage, if there is no recent answer.
    pub(super) async fn saves_texts(&self, queue: &QueueName) -> Result<bool, StoreError> {
        let ask = || {
            let (queues, queue) = (self.clone(), queue.clone());
            async move { queues.ask_for_texts(&queue).await }
        };
        let found = self.saves_texts.get(self.links.runtime(), Place::of(queue).queue, ask).await;
        found.map(|found| found.saves).map_err(|fault| fault.of_read(Operation::Get.as_str(), queue))
    }

    async fn ask_for_texts(&self, queue: &QueueName) -> Result<SavesTexts, Fault> {
        let asked = Instant::now();
        let answer = timeout(TEXTS_TIMEOUT, self.queue_blobs.saves_texts(queue)).await;
        let answer = answer.map_err(|_| Fault::not_sent("the blobs do not answer"))?;
        let saves = answer.map_err(|error| Fault::Blobs(Arc::new(error)))?;
        // This process may have written its note after the blobs were read.
        let is_noted = self.facts(queue, |facts| facts.noted.is_some_and(|noted| noted >= asked));
        Ok(SavesTexts::asked(saves || is_noted, asked))
    }

    /// Writes a note that a text is about to be saved for a message of the queue, so that all processes look
    /// for texts.
    pub(super) async fn note_saving(&self, queue: &QueueName) -> Result<(), StoreError> {
        let noted = self.facts(queue, |facts| facts.noted);
        if noted.is_none_or(|noted| noted.elapsed() >= NOTE_PERIOD) {
            self.queue_blobs.note_saving(queue).await.map_err(|error| error.with_ambiguous(false))?;
            let now = Instant::now();
            self.facts(queue, |facts| facts.noted = Some(now));
            self.saves_texts.set(Place::of(queue).queue, SavesTexts::asked(true, now));
        }
        Ok(())
    }
}
