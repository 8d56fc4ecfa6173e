//! The options of a send.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::envelope::is_own_header;

/// The options of a send, as data. [`SendRequest`](super::SendRequest) has the same methods;
/// [`with`](super::SendRequest::with) accepts these options.
///
/// ```
/// use jobqueue::SendOptions;
/// use std::time::Duration;
///
/// let tomorrow = SendOptions::new().delay(Duration::from_secs(86_400)).header("tenant", "blue");
/// ```
#[derive(Debug, Clone, Default)]
pub struct SendOptions {
    pub(crate) delay: Option<Duration>,
    pub(crate) at: Option<SystemTime>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) key: Option<String>,
    pub(crate) id: Option<String>,
    pub(crate) source: Option<Arc<str>>,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) in_order: bool,
}

impl SendOptions {
    /// Returns the default options: the message is visible at once and never expires.
    pub fn new() -> Self {
        Self::default()
    }

    jobqueue_storage::setters! {
        /// Sets the time before which the job does not run: up to 10 years. A message with a delay of more
        /// than 7 days hops, that is, it is received and put back every 7 days. On SQLite a step of the wall
        /// clock ahead [shortens it](crate::guide::storages#the-clock).
        delay(delay: Duration);

        /// Sets the point in time before which the job does not run, by the sender's clock. It is stored as
        /// a [delay](Self::delay) from the time of the send.
        at(moment: SystemTime) => at;

        /// Sets the time after which the message expires, processed or not: at least 1 second, and longer
        /// than the delay. The default is never. No handler begins in the last second: a message that lives
        /// for a second after its delay never runs. A program that receives the message by hand in that
        /// second gets a delivery whose lease is lost. The token of a running handler also fires by then. On
        /// SQLite a step of the wall clock ahead [shortens it](crate::guide::storages#the-clock).
        ttl(ttl: Duration);

        /// Sets the key, the subject of the message, instead of the field marked `key`.
        key(key some String);
    }

    /// Keeps the order among the messages of the key. A message starts after every message of its key whose
    /// send in order to this queue had returned when this send began, and workers run the messages one at a
    /// time. The next job starts when the job before it is done or dead-lettered. A message that fails,
    /// snoozes or is delayed therefore holds up its own key, and no other key.
    ///
    /// The default is off. Order needs a key, and excludes a time to live. SQLite, PostgreSQL, the storage in
    /// memory and sessions of Service Bus keep the order themselves. On the other storages a send costs two
    /// more conditional writes of a small blob, and handling costs one (two on Service Bus);
    /// [`Worker`](crate::Worker)s keep the order there, but [`Queue::receive`](crate::Queue::receive) does
    /// not. The [guide](crate::guide::coordination#order) says what is promised and what is not.
    #[must_use]
    pub fn in_order(mut self) -> Self {
        self.in_order = true;
        self
    }

    /// Returns the id, the source and the key, if they were set.
    pub(crate) fn identity(&self) -> (Option<&str>, Option<Arc<str>>, Option<&str>) {
        (self.id.as_deref(), self.source.clone(), self.key.as_deref().filter(|key| !key.is_empty()))
    }

    /// Completes these options with `other`. An option that both set keeps its value from `self`.
    pub(crate) fn or(self, other: Self) -> Self {
        let is_timed = self.delay.is_some() || self.at.is_some();
        let mut headers = other.headers;
        headers.extend(self.headers);
        Self {
            delay: if is_timed { self.delay } else { other.delay },
            at: if is_timed { self.at } else { other.at },
            ttl: self.ttl.or(other.ttl),
            key: self.key.or(other.key),
            id: self.id.or(other.id),
            source: self.source.or(other.source),
            headers,
            in_order: self.in_order || other.in_order,
        }
    }

    /// Returns the [time to live](Self::ttl), if one was set.
    pub fn time_to_live(&self) -> Option<Duration> {
        self.ttl
    }

    /// Returns the [sender](Self::source), if one was given.
    pub fn sender(&self) -> Option<&str> {
        self.source.as_deref()
    }

    jobqueue_storage::setters! {
        /// Sets the job's id, instead of a new one: 1 to 1,024 bytes. Send again under the same id after
        /// [`is_outcome_unknown`](crate::Error::is_outcome_unknown), and make effects idempotent by id.
        ///
        /// An id belongs to its sender: [`source`](Self::source) and id together identify the job, also for
        /// [`Context::once`](crate::Context::once). Set both if the id follows from your data: the default
        /// source has the name of the executable.
        id(id some String);

        /// Sets the sender, a URI reference of 1 to 1,024 bytes. The default is `/jobqueue/<program>`, with
        /// the name of the executable's file, or for a queue that [`Context::queue`](crate::Context::queue)
        /// has opened the value of [`WorkerBuilder::source`](crate::WorkerBuilder::source). Set the same
        /// source in all programs that send the same jobs under the same ids: two jobs with one id from two
        /// sources are two jobs.
        source(source: impl Into<Arc<str>>) =
            Some(source.into()).filter(|source: &Arc<str>| !source.is_empty());
    }

    /// Adds an attribute to the event: a name of 1–20 lower-case letters and digits, and a text. Handlers
    /// read the attribute from [`JobInfo::headers`](crate::JobInfo::headers). A job has at most 200. A program
    /// can select dead letters by [`DeadLetter::headers`](crate::dead_letters::DeadLetter::headers); the
    /// command line, the dashboard and the journal select jobs by the key, and by no header.
    ///
    /// The attributes of the order (`inorder`, `fifocopy`, `fifopage`) and of batches (`batchid`,
    /// `batchindex`, `batchtoken`, `batchondead`, `batchcopy`, `batchof`, `batchoftoken`) belong to one job,
    /// and are left out: a handler can pass on all headers of its job.
    #[must_use]
    pub fn header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let name = name.into();
        if is_own_header(&name) {
            return self;
        }
        self.own_header(name, value)
    }

    /// Adds any attribute, also one that belongs to the framework.
    pub(crate) fn own_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }
}
