//! Messages with which nothing is wrong, but which wait for something outside: for a worker that knows their kind, for a payload that
//! can be read, for a hook that does its part. They are put back ever more seldom, cost no attempt, and wait only so long.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;

use super::decode::Rejection;
use super::leased_job::LeasedJob;
use super::send::rfc3339;
use crate::entropy;
use crate::envelope::Deferral;
use crate::error::Error;
use crate::job::outcome::Reason;
use crate::job::retry::Backoff;
use crate::settings::QueueSettings;

/// A payload that does not exist is waited for this long: 5 minutes. A storage that was failed over may show it later.
const MISSING_GRACE: Duration = Duration::from_secs(5 * 60);
/// A hook that says that trying again cannot help is tried again for this long: 1 hour. It may not know.
const HOOK_GRACE: Duration = Duration::from_secs(3_600);
/// The least number of times a message is put back before a wait is over, however much time has passed.
const LEAST_TRIES: u32 = 2;

/// The cause for which a message waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A worker that knows the kind.
    UnknownKind,
    /// A worker that knows the version.
    NewerVersion,
    /// The storage has the payload and cannot be read.
    PayloadUnreadable,
    /// The storage says that the payload does not exist.
    PayloadMissing,
    /// A hook failed and may succeed later.
    Hook,
    /// The same, and trying again will probably not help.
    BrokenHook,
}

/// The result of deferring a message.
#[derive(Debug)]
pub(crate) enum Deferred {
    /// It was put back for this time.
    PutBack(Duration),
    /// It has waited for long enough; nothing was done yet.
    Over(Rejection),
}

impl Cause {
    /// Returns what is kept with the message. Causes of one code share one wait.
    fn code(self) -> &'static str {
        match self {
            Self::UnknownKind | Self::NewerVersion => "unknown",
            Self::PayloadUnreadable => "payload_unreadable",
            Self::PayloadMissing => "payload_missing",
            Self::Hook => "hook",
            Self::BrokenHook => "broken_hook",
        }
    }

    fn backoff(self) -> Backoff {
        let seconds = |base, max| Backoff::exponential(Duration::from_secs(base), Duration::from_secs(max));
        match self {
            Self::UnknownKind | Self::NewerVersion => seconds(1, 300),
            Self::PayloadUnreadable | Self::PayloadMissing => seconds(1, 60),
            Self::Hook | Self::BrokenHook => seconds(5, 300),
        }
    }

    /// Returns how long a message waits at most; `None` is for as long as it takes.
    fn limit(self, settings: &QueueSettings) -> Option<Duration> {
        match self {
            Self::UnknownKind | Self::NewerVersion => Some(settings.unknown_kind_timeout),
            Self::PayloadMissing => Some(MISSING_GRACE),
            Self::BrokenHook => Some(HOOK_GRACE),
            Self::PayloadUnreadable | Self::Hook => None,
        }
    }

    /// The reason of the dead letter, if it comes to that.
    pub(crate) fn reason(self) -> Reason {
        match self {
            Self::UnknownKind => Reason::UNKNOWN_KIND,
            Self::NewerVersion => Reason::NEWER_VERSION,
            Self::PayloadUnreadable | Self::PayloadMissing => Reason::PAYLOAD_MISSING,
            Self::Hook | Self::BrokenHook => Reason::COORDINATION_FAILED,
        }
    }

    /// Between half of the back-off's ceiling and all of it.
    fn wait(self, count: u32) -> Duration {
        entropy::jitter(self.backoff().ceiling(count), 0.5..=1.0)
    }
}

impl LeasedJob {
    /// Forgets that the message waited to be run: it is. A wait for a hook goes on, which is asked again at the job's end.
    pub(crate) fn runs(&self) {
        let waits_for_hook =
            |deferral: &Deferral| [Cause::Hook.code(), Cause::BrokenHook.code()].contains(&&*deferral.cause);
        let former = self.with_envelope(|envelope| envelope.history.deferral.as_ref().map(waits_for_hook));
        if former.flatten() == Some(false) {
            self.end_wait();
        }
    }

    /// Puts the message back because of `cause`, unless it has waited for it long enough. `detail` says more to people.
    pub(crate) async fn defer(&self, cause: Cause, detail: &str) -> Result<Deferred, Error> {
        let now = self.received_at();
        let former = self.with_envelope(|envelope| envelope.history.deferral.clone()).flatten();
        let former = former.filter(|former| former.cause == cause.code());
        let (mut deferral, waited) = match former.and_then(|former| waited(former, now)) {
            Some(former) => former,
            None => (first(cause, now)?, Duration::ZERO),
        };
        if let Some(limit) = cause.limit(&self.settings)
            && deferral.count >= LEAST_TRIES
            && waited >= limit
        {
            let tries = deferral.count;
            let detail = format!("{detail}; waited for it for {waited:.0?}, in {tries} deliveries");
            return Ok(Deferred::Over(Rejection::new(cause.reason(), detail)));
        }
        deferral.count = deferral.count.saturating_add(1);
        let wait = cause.wait(deferral.count);
        self.release_deferred(wait, deferral).await?;
        Ok(Deferred::PutBack(wait))
    }
}

fn first(cause: Cause, now: SystemTime) -> Result<Deferral, Error> {
    Ok(Deferral { cause: cause.code().to_owned(), since: rfc3339(Some(now))?, count: 0 })
}

/// The wait and how long it has lasted; `None` if nobody can read when it began.
fn waited(deferral: Deferral, now: SystemTime) -> Option<(Deferral, Duration)> {
    let since = SystemTime::from(deferral.since.parse::<Timestamp>().ok()?);
    Some((deferral, now.duration_since(since).unwrap_or_default()))
}
