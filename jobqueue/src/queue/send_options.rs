//! Defines what a sender can say about a message.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The options of a send.
///
/// ```
/// use jobqueue::SendOptions;
/// use std::time::Duration;
///
/// let tomorrow = SendOptions::new().delay(Duration::from_secs(86_400)).header("tenant", "blue");
/// ```
#[derive(Debug, Clone, Default)]
pub struct SendOptions {
    pub(super) delay: Option<Duration>,
    pub(super) at: Option<SystemTime>,
    pub(super) ttl: Option<Duration>,
    pub(super) key: Option<String>,
    pub(super) id: Option<String>,
    pub(super) source: Option<Arc<str>>,
    pub(super) headers: BTreeMap<String, String>,
    pub(super) in_order: bool,
}

impl SendOptions {
    /// Visible at once, never expires.
    pub fn new() -> Self {
        Self::default()
    }

    /// Not to be run before this time has passed. Longer than 7 days is possible: the message then hops, that is, it is
    /// received and put back every 7 days.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// Not to be run before this moment, by the sender's clock.
    #[must_use]
    pub fn at(mut self, moment: SystemTime) -> Self {
        self.at = Some(moment);
        self
    }

    /// Vanishes after this time, processed or not: at least 1 second, and longer than the delay. The default is never.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Sets what the message is about, instead of the field marked `key`.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Workers handle it one at a time with, and after, all messages of its key that were sent in order to this queue before
    /// it: after those whose send had returned when this one's began. The next one's turn comes when it is done or
    /// dead-lettered, so that a message that fails, snoozes or is delayed holds back its key, and no other key.
    ///
    /// Off by default. Needs a key, and excludes a time to live. Costs two conditional writes of a small blob more to send it and one to
    /// handle it. Order is kept by [`Worker`](crate::Worker)s, not by [`Queue::receive`](crate::Queue::receive). See
    /// the [guide](crate::guide::coordination) for what is and what is not promised.
    #[must_use]
    pub fn in_order(mut self) -> Self {
        self.in_order = true;
        self
    }

    /// Returns the id, the source and the key, as far as they were given.
    pub(crate) fn identity(&self) -> (Option<&str>, Option<Arc<str>>, Option<&str>) {
        (self.id.as_deref(), self.source.clone(), self.key.as_deref().filter(|key| !key.is_empty()))
    }

    /// Completes these options with those of `other`; what both set stays as it is here.
    pub(super) fn or(self, other: Self) -> Self {
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

    /// The time to live, if one was given.
    #[cfg(feature = "testing")]
    pub(crate) fn time_to_live(&self) -> Option<Duration> {
        self.ttl
    }

    /// The job's id, instead of a new one: 1 to 1,024 bytes. Sending twice under one id is how to be safe after
    /// [`is_outcome_unknown`](crate::Error::is_outcome_unknown): effects are to be idempotent by id.
    ///
    /// An id belongs to its sender: the job is identified by [`source`](Self::source) and id together.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// The sender, a URI reference, instead of the default: `/jobqueue/<program>`, or what
    /// [`WorkerBuilder::source`](crate::WorkerBuilder::source) says. Give the same one in all programs that send the same jobs under the
    /// same ids: to the framework, two jobs with one id from two sources are two jobs.
    #[must_use]
    pub fn source(mut self, source: impl Into<Arc<str>>) -> Self {
        self.source = Some(source.into()).filter(|source: &Arc<str>| !source.is_empty());
        self
    }

    /// Adds an attribute to the event: a name of 1–20 lower-case letters and digits, and a text. Handlers find it in
    /// [`JobInfo::headers`](crate::JobInfo::headers).
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }
}
