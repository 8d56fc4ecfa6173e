//! The queues of a storage, with their main figures.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt, join, stream};
use jobqueue::__internals::{QueueReading, RunningJob, UntypedQueue, WorkerRecord};
use jobqueue::settings::{Metadata, QueueSettings, SettingWarning};
use jobqueue::storage::{StateCounts, StoreErrorKind};
use jobqueue::{Error, ErrorKind, QueueName, Storage};
use jobqueue_message::settings::{DEFAULT_LEASE, DEFAULT_TIMEOUT};
use jobqueue_storage::text::chain;
use serde::Serialize;
use tokio::time::{Instant, timeout_at};

use super::event::ActionTarget;
use super::in_time::{READ_TIMEOUT, timed_out};
use super::text::seconds_option;
use super::{Action, Admin, Pause, WorkerOverview, pause, resolve};

/// The number of queues that are read concurrently: with 32, a list of hundreds of queues is complete within
/// [`READ_TIMEOUT`].
const CONCURRENT_READS: usize = 32;

/// A queue as operators see it. The shards of a queue count as one queue.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[non_exhaustive]
pub struct QueueOverview {
    /// The name.
    pub name: String,
    /// The approximate number of messages, invisible ones included; never 0 if there are any. `None` if it
    /// cannot be read.
    pub length: Option<u64>,
    /// The number of visible messages that a peek showed: at most 32. `None` if the queue cannot be read.
    pub visible: Option<u64>,
    /// True if [`visible`](Self::visible) is exact. At 32 there may be more, and storages do not return the
    /// exact number.
    pub visible_is_exact: bool,
    /// The numbers of messages that wait, are delayed, back off and run; `None` if the storage cannot count
    /// by state.
    pub states: Option<StateCounts>,
    /// The time for which the oldest receivable message has waited since it was due, if the storage shows
    /// every message. Messages that wait for another of their key do not count. On other storages, the time
    /// for which the oldest of the next 32 messages has been in the queue, delays and earlier attempts
    /// included. Measured by the storage's clock. `None` if no message can be received, if a peek shows none
    /// but does not reach all, and if the storage does not return its time: [`visible`](Self::visible) and
    /// [`held_up`](Self::held_up) distinguish these.
    #[serde(rename = "oldest_seconds", serialize_with = "seconds_option")]
    pub oldest: Option<Duration>,
    /// True if messages are visible, but each waits for another of its key, so that no worker can receive any.
    /// Always false on storages that do not show every message.
    pub held_up: bool,
    /// The time since the oldest message that waits for another of its key was sent, by the storage's clock,
    /// including its delay. `None` if no message waits so, and if the storage does not
    /// [count](Self::states) them.
    #[serde(rename = "oldest_held_up_seconds", serialize_with = "seconds_option")]
    pub oldest_held_up: Option<Duration>,
    /// The time since the oldest message that backs off was sent, by the storage's clock, including a delay
    /// before the first attempt. `None` if no message backs off, and if the storage does not
    /// [count](Self::states) them.
    #[serde(rename = "oldest_backing_off_seconds", serialize_with = "seconds_option")]
    pub oldest_backing_off: Option<Duration>,
    /// The approximate number of dead letters; for a dead-letter queue, of its own messages. `None` if they
    /// cannot be counted.
    pub dead_letters: Option<u64>,
    /// True if workers fetch nothing from the queue; `None` if it cannot be read.
    pub paused: Option<bool>,
    /// The pause with its operator, end and note; `None` if the queue is not paused.
    pub pause: Option<Pause>,
    /// The settings that apply to all workers, by their names in the metadata. The poison threshold, the
    /// timeout and the deliveries are included only if the queue sets them; otherwise each message type has
    /// its own.
    pub settings: BTreeMap<String, String>,
    /// The metadata of the queue, as set by operators and programs.
    pub metadata: BTreeMap<String, String>,
    /// A warning for each value in the metadata that workers do not use.
    pub warnings: Vec<String>,
    /// The reason why some of the numbers, or all, are unknown: a request failed.
    pub error: Option<String>,
}

impl Admin {
    /// Returns all queues, in order of name. A dead-letter queue is part of its queue, and is listed
    /// separately only if that queue does not exist. A queue that cannot be read, or not within 8 seconds of
    /// the call, is listed with its [error](QueueOverview::error).
    ///
    /// Costs one request to list, and three for each queue; five on SQLite, PostgreSQL and memory, which count
    /// by state.
    ///
    /// # Errors
    /// [`Storage`](ErrorKind::Storage) if the queues cannot be listed.
    pub async fn queues(&self) -> Result<Vec<QueueOverview>, Error> {
        // One deadline for all, measured from the request for the names, so that the waits for hanging queues
        // do not add up.
        let deadline = Instant::now() + READ_TIMEOUT;
        let names = self.queue_names().await?;
        let reads = names.into_iter().map(|name| async move {
            match timeout_at(deadline, self.read_queue(&name)).await.unwrap_or_else(|_| Err(timed_out())) {
                Ok(overview) => Some(overview),
                // The queue was deleted after it was listed.
                Err(e) if e.kind() == ErrorKind::NotFound => None,
                Err(e) => Some(QueueOverview { error: Some(chain(&e)), ..QueueOverview::unread(&name) }),
            }
        });
        let found: Vec<_> = stream::iter(reads).buffer_unordered(CONCURRENT_READS).collect().await;
        let mut found: Vec<_> = found.into_iter().flatten().collect();
        found.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(found)
    }

    /// Returns the names of all queues, without dead-letter queues whose queue exists. Costs one request.
    ///
    /// # Errors
    /// [`Storage`](ErrorKind::Storage) if the queues cannot be listed.
    pub async fn queue_names(&self) -> Result<Vec<QueueName>, Error> {
        let all = self.storage.queues().list_queues("").await?;
        let is_of_another = |name: &QueueName| {
            let home = name.as_str().strip_suffix(jobqueue_storage::DEAD_LETTER_SUFFIX);
            home.is_some_and(|home| all.iter().any(|other| other.as_str() == home))
        };
        Ok(all.iter().filter(|name| !is_of_another(name)).cloned().collect())
    }

    /// Returns why jobs that wait in a queue do not start; `None` also if the reason cannot be read.
    pub(super) async fn hold_of(&self, queue: &str) -> Option<QueueHold> {
        let (queue, workers) = join!(self.queue(queue), self.workers());
        queue.ok()?.hold(&workers.ok()?)
    }

    /// Returns a queue. Costs three requests, on SQLite, PostgreSQL and in memory five. If only its dead
    /// letters cannot be counted, [`error`](QueueOverview::error) says why.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if there is no such queue; [`Invalid`](ErrorKind::Invalid) for a
    /// name that is not allowed; [`Storage`](ErrorKind::Storage) if it cannot be read.
    pub async fn queue(&self, queue: &str) -> Result<QueueOverview, Error> {
        self.read_queue(&QueueName::new(queue)?).await
    }

    /// Creates a queue without settings; returns false if it exists.
    ///
    /// # Errors
    /// [`Forbidden`](ErrorKind::Forbidden); [`Invalid`](ErrorKind::Invalid) for a name that is not allowed;
    /// [`Storage`](ErrorKind::Storage) if the storage refuses.
    ///
    /// # Cancel safety
    /// If the future is dropped, the queue may or may not be created.
    pub async fn create_queue(&self, queue: &str) -> Result<bool, Error> {
        self.create_queue_in(queue, "", async { Ok(self.storage.clone()) }).await
    }

    /// Creates a queue like [`create_queue`](Self::create_queue) in another storage, which `open` may create
    /// or migrate. `open` is polled only once the action is allowed and recorded, with `first` as the
    /// selection.
    #[doc(hidden)]
    pub async fn create_queue_in(
        &self,
        queue: &str,
        first: &str,
        open: impl Future<Output = Result<Storage, Error>>,
    ) -> Result<bool, Error> {
        let work = async {
            let name = QueueName::new(queue)?;
            // The dead-letter queue needs a valid name too.
            name.dead_letter()?;
            UntypedQueue::create(&open.await?, &name).await
        };
        let summary = |new: &bool| if *new { "created".to_owned() } else { "it exists".to_owned() };
        let target = ActionTarget { selection: first.to_owned(), ..format!("queue {queue}").into() };
        self.act(Action::CreateQueue, target, work, summary).await
    }

    async fn read_queue(&self, name: &QueueName) -> Result<QueueOverview, Error> {
        let reading = QueueReading::take(&self.storage, name).await.map_err(|e| not_found(e, name))?;
        let QueueReading { length, states, visible, visible_is_exact, oldest, held_up, now, .. } = reading;
        let QueueReading { dead_letters, metadata, .. } = reading;
        let errors = [
            length.as_ref().err().map(|error| format!("the messages cannot be counted: {}", chain(error))),
            dead_letters
                .as_ref()
                .err()
                .map(|error| format!("the dead letters cannot be counted: {}", chain(error))),
        ];
        let errors: Vec<_> = errors.into_iter().flatten().collect();
        let since = |at| now.duration_since(at).unwrap_or_default();
        Ok(QueueOverview {
            oldest_held_up: states.and_then(|states| states.oldest_held_up).map(since),
            oldest_backing_off: states.and_then(|states| states.oldest_backing_off).map(since),
            length: length.ok(),
            visible: Some(visible),
            visible_is_exact,
            states,
            oldest,
            // Jobs in order that are only delayed hold up nothing.
            held_up: held_up && states.is_none_or(|states| states.oldest_held_up.is_some()),
            error: (!errors.is_empty()).then(|| errors.join("; ")),
            dead_letters: dead_letters.ok(),
            ..QueueOverview::unread(name).with_metadata(&metadata, now)
        })
    }
}

/// Returns the error of a request, `NotFound` if it failed because the queue does not exist.
pub(super) fn not_found(error: jobqueue::storage::StoreError, queue: &QueueName) -> Error {
    if error.kind() == StoreErrorKind::QueueNotFound {
        let text = format!("there is no queue `{queue}`; check its name, or create it first");
        return Error::new(ErrorKind::NotFound, text);
    }
    error.into()
}

impl Admin {
    /// Refuses a dead-letter queue: its dead letters neither wait nor run, and are named by the queue that
    /// they came from.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for a dead-letter queue.
    #[doc(hidden)]
    pub fn check_home(queue: &str) -> Result<(), Error> {
        let Some(home) = queue.strip_suffix(jobqueue_storage::DEAD_LETTER_SUFFIX) else { return Ok(()) };
        let text = format!(
            "`{queue}` has the dead letters of `{home}`: name that queue, and create it if it was deleted"
        );
        Err(Error::new(ErrorKind::Invalid, text))
    }
}

/// A setting of a queue as all workers use it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EffectiveSetting {
    /// The name in the metadata.
    pub name: String,
    /// The value; `by message type` where each message type has its own.
    pub value: String,
    /// True if the metadata of the queue sets it.
    pub is_set: bool,
}

/// The reason why jobs that wait in a queue do not start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
#[non_exhaustive]
pub enum QueueHold {
    /// The queue is paused.
    Paused(Pause),
    /// No present worker that writes records serves the queue.
    NoWorker,
    /// The queue cannot be read: the storage does not answer now.
    Unread,
    /// Not all of the queue's dead letters are visible, and the jobs may be among them.
    HiddenLetters,
    /// A state of the queue has more than 100,000 jobs, and the jobs may be behind these.
    ManyJobs,
}

/// Writes the text that follows the name of the queue: `is paused by ada`.
impl fmt::Display for QueueHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paused(pause) => write!(f, "is paused{pause}"),
            Self::NoWorker => f.write_str("is served by no worker that writes records"),
            Self::Unread => f.write_str("cannot be read now"),
            Self::ManyJobs => f.write_str("has more than 100,000 jobs of a state, of which the first are read"),
            Self::HiddenLetters => f.write_str(
                "has dead letters that others hold, or that a request without an answer hides, for up to 10 minutes",
            ),
        }
    }
}

impl QueueOverview {
    /// Returns why jobs that wait in the queue do not start; `None` if no reason is known.
    pub fn hold(&self, workers: &[WorkerOverview]) -> Option<QueueHold> {
        let is_unserved = || self.is_unserved(workers).then_some(QueueHold::NoWorker);
        self.pause.clone().map(QueueHold::Paused).or_else(is_unserved)
    }

    /// Returns whether the queue has no job by its length, also none that is delayed, backs off or runs.
    pub fn is_empty(&self) -> bool {
        self.length == Some(0)
    }

    /// Returns how many of its workers fetch nothing because every job that they ran failed, as text:
    /// `circuit open on 1 of 2 workers`. The circuit of an [empty](Self::is_empty) queue is open until its
    /// next job, which is the probe, has succeeded; the text says so. `None` if there is no such worker.
    pub fn open_circuits(&self, workers: &[WorkerOverview]) -> Option<String> {
        let (open, all) = self.count_circuits(workers);
        let end = if all == 1 { "" } else { "s" };
        let empty = if self.is_empty() { ": the queue is empty, its next job is the probe" } else { "" };
        (open > 0).then(|| format!("circuit open on {open} of {all} worker{end}{empty}"))
    }

    /// Returns the number of workers that serve the queue and have an open circuit, and of all that serve it.
    pub(super) fn count_circuits(&self, workers: &[WorkerOverview]) -> (usize, usize) {
        let serving = workers.iter().filter(|worker| {
            !worker.stale && !worker.record.draining && worker.record.listens_to(&self.name)
        });
        let open = serving.clone().filter(|worker| worker.record.has_open_circuit(&self.name)).count();
        (open, serving.count())
    }

    /// Returns how many seconds after the last write of a record the lease of a job in it has certainly
    /// ended, if its worker has died.
    #[doc(hidden)]
    pub fn longest_lease(&self, record: &WorkerRecord, run: &RunningJob) -> f64 {
        let default = self.settings.get(DEFAULT_TIMEOUT).and_then(|seconds| seconds.parse::<f64>().ok());
        let lease = run.lease_seconds.or(default).unwrap_or(DEFAULT_LEASE.as_secs_f64());
        // The worker may have renewed the lease until just before its next record was due.
        record.interval_seconds + lease
    }

    /// Returns whether the queue has waiting jobs, but no present worker that writes records serves it.
    /// Always false for a dead-letter queue: dead letters wait for no worker.
    pub fn is_unserved(&self, workers: &[WorkerOverview]) -> bool {
        let mut present = workers.iter().filter(|worker| !worker.stale);
        !self.name.ends_with(jobqueue_storage::DEAD_LETTER_SUFFIX)
            && self.visible.is_some_and(|visible| visible > 0)
            && !present.any(|worker| worker.record.listens_to(&self.name))
    }

    /// Returns whether [`oldest`](Self::oldest) is the age of the oldest of all receivable messages, and not
    /// only of those that a peek shows.
    pub fn oldest_is_exact(&self) -> bool {
        // A storage that counts by state shows every message.
        self.visible_is_exact || self.states.is_some()
    }

    /// Returns the age that metrics report: [`oldest`](Self::oldest), or zero if no message can be received.
    /// `None` if the age is unknown.
    pub fn age(&self) -> Option<Duration> {
        let receives_none = self.held_up || (self.visible == Some(0) && self.visible_is_exact);
        self.oldest.or(receives_none.then_some(Duration::ZERO))
    }

    /// Returns all settings with their values; none if the queue could not be read. The [pause](Self::pause)
    /// is not a setting.
    pub fn effective_settings(&self) -> Vec<EffectiveSetting> {
        let is_set = |name: &str| self.metadata.keys().any(|set| set.eq_ignore_ascii_case(name));
        let setting = |name: &str, value: &str| EffectiveSetting {
            name: name.to_owned(),
            value: value.to_owned(),
            is_set: is_set(name),
        };
        let types_decide = |name: &&&str| !self.settings.is_empty() && !self.settings.contains_key(**name);
        let of_types = QueueSettings::OF_TYPES.iter().filter(types_decide);
        let known = self.settings.iter().filter(|(name, _)| !pause::NAMES.contains(&name.as_str()));
        let known = known.map(|(name, value)| setting(name, value));
        known.chain(of_types.map(|name| setting(name, "by message type"))).collect()
    }

    fn unread(name: &QueueName) -> Self {
        Self { name: name.to_string(), ..Self::default() }
    }

    fn with_metadata(mut self, metadata: &Metadata, now: SystemTime) -> Self {
        let (mut settings, warnings) = resolve(metadata);
        if !settings.is_paused(now) {
            // The pause has ended.
            (settings.paused, settings.paused_until) = (false, None);
        }
        self.paused = Some(settings.paused);
        self.pause = settings.paused.then(|| Pause::of(metadata, &settings));
        self.settings =
            settings.entries().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        self.metadata = metadata.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        self.warnings = warnings.iter().map(SettingWarning::without_type).collect();
        self
    }
}
