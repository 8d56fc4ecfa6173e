//! Deferral: valid messages wait for a condition outside them, such as a worker that knows their kind, a
//! payload that can be read, or a hook that succeeds.
//!
//! A deferred message is put back with growing delays. That costs no attempt. Most causes have a limit, after
//! which the message is dead-lettered.

use std::time::Duration;

use super::disposition::Rejection;
use super::leased_job::LeasedJob;
use crate::clock::{parse_rfc3339, rfc3339};
use crate::envelope::Deferral;
use crate::error::Error;
use crate::job::Backoff;
use crate::job::outcome::Reason;
use crate::message::DecodeError;
use crate::runtime::Runtime;
use crate::settings::QueueSettings;

/// The time that a message waits for a payload that does not exist: 5 minutes. After a failover the storage
/// may show it later.
const MISSING_PAYLOAD_LIMIT: Duration = Duration::from_secs(5 * 60);
/// The time that a message waits for a hook whose error is not retryable: 1 hour. The hook may be wrong about
/// that.
const BROKEN_HOOK_LIMIT: Duration = Duration::from_secs(3_600);
/// The time for which a storage outage that stops the handler costs no attempt: 1 day. Each delivery runs the
/// handler again.
const OUTAGE_LIMIT: Duration = Duration::from_secs(86_400);
/// The minimum number of put-backs before a wait ends, however long it has lasted.
const MIN_PUT_BACKS: u32 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeferralCause {
    /// No worker that received the message has had a handler for its kind.
    UnknownKind,
    /// No worker that received the message has known its version.
    NewerVersion,
    /// The codec cannot decode the payload now.
    CodecNotReady,
    /// The payload cannot be read, and the storage does not say that it is missing.
    PayloadUnreadable,
    /// The storage says that the payload does not exist.
    PayloadMissing,
    /// A hook failed and may succeed later.
    Hook,
    /// A hook failed with an error that is not retryable.
    BrokenHook,
    /// A hook failed with an error that is not retryable, before the handler ran.
    BrokenAdmission,
    /// The handler failed because the storage failed, or because a codec could not encode what it sends.
    Outage,
    /// Fetching the payload, waiting for the turn and calling the hooks together exceeded the time for a
    /// preparation.
    SlowPreparation,
}

impl DeferralCause {
    /// Returns the cause if another program, or this one later, may decode the payload.
    pub(crate) fn of_undecodable(error: &DecodeError) -> Option<Self> {
        let cause = if error.is_newer_version() { Self::NewerVersion } else { Self::CodecNotReady };
        error.is_retryable().then_some(cause)
    }

    /// Returns whether only another program, or another release, may be able to run the job.
    pub(crate) fn is_for_others(self) -> bool {
        matches!(self, Self::UnknownKind | Self::NewerVersion | Self::CodecNotReady)
    }

    /// Returns the name that operators see.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::UnknownKind => "unknown_kind",
            Self::NewerVersion => "newer_version",
            _ => self.code(),
        }
    }

    /// Returns the code that is stored with the message. Causes with the same code share a wait.
    fn code(self) -> &'static str {
        match self {
            Self::UnknownKind | Self::NewerVersion => "unknown",
            Self::CodecNotReady => "codec_not_ready",
            Self::PayloadUnreadable => "payload_unreadable",
            Self::PayloadMissing => "payload_missing",
            Self::Hook => "hook",
            Self::BrokenHook => "broken_hook",
            Self::BrokenAdmission => "broken_admission",
            Self::Outage => "outage",
            Self::SlowPreparation => "slow_preparation",
        }
    }

    /// Returns the first delay and the maximum delay.
    fn waits(self) -> (Duration, Duration) {
        let seconds = |first, longest| (Duration::from_secs(first), Duration::from_secs(longest));
        match self {
            // Short, because a worker that can run the message may start at any time, and workers that
            // cannot may receive it first again.
            Self::UnknownKind | Self::NewerVersion | Self::CodecNotReady => seconds(1, 30),
            Self::PayloadUnreadable | Self::PayloadMissing | Self::Outage | Self::SlowPreparation => {
                seconds(1, 60)
            }
            Self::Hook | Self::BrokenHook | Self::BrokenAdmission => seconds(5, 300),
        }
    }

    /// Returns the maximum duration of the wait, and the reason for dead-lettering after it; `None` if the
    /// wait is unlimited.
    fn limit(self, settings: &QueueSettings) -> Option<(Duration, Reason)> {
        match self {
            Self::UnknownKind => Some((settings.unknown_kind_timeout, Reason::UNKNOWN_KIND)),
            Self::NewerVersion => Some((settings.unknown_kind_timeout, Reason::NEWER_VERSION)),
            Self::CodecNotReady => Some((settings.unknown_kind_timeout, Reason::DECODE_ERROR)),
            Self::PayloadMissing => Some((MISSING_PAYLOAD_LIMIT, Reason::PAYLOAD_MISSING)),
            Self::BrokenHook | Self::BrokenAdmission => {
                Some((BROKEN_HOOK_LIMIT, Reason::COORDINATION_FAILED))
            }
            // The end of the handler decides about an outage: `may_wait_for_outage`.
            Self::PayloadUnreadable | Self::Hook | Self::SlowPreparation | Self::Outage => None,
        }
    }

    /// Returns the next delay: between half of the backoff's ceiling and the ceiling.
    fn wait(self, count: u32, runtime: &Runtime) -> Duration {
        let (first, longest) = self.waits();
        runtime.jitter(Backoff::exponential(first, longest).ceiling(count), 0.5..=1.0)
    }
}

/// Ends a wait for a condition of the run, because the job runs now. A wait for a hook after the run, or for
/// the end of an outage, goes on: the hook is called again, and the handler may fail again.
pub(crate) fn end_wait_for_run(job: &LeasedJob) {
    if !waits_for(job, &[DeferralCause::Hook, DeferralCause::BrokenHook, DeferralCause::Outage]) {
        job.end_wait();
    }
}

/// Ends a wait for a worker that knows the kind. This worker knows it, whether or not the job runs now.
pub(super) fn end_wait_for_known_kind(job: &LeasedJob) {
    if waits_for(job, &[DeferralCause::UnknownKind]) {
        job.end_wait();
    }
}

/// Returns whether the last download of the payload or the checkpoint has failed, or may have taken too long.
pub(super) fn waits_for_payload(job: &LeasedJob) -> bool {
    waits_for(
        job,
        &[DeferralCause::PayloadUnreadable, DeferralCause::PayloadMissing, DeferralCause::SlowPreparation],
    )
}

fn waits_for(job: &LeasedJob, causes: &[DeferralCause]) -> bool {
    let matches_cause = |deferral: &Deferral| causes.iter().any(|cause| cause.code() == deferral.cause);
    job.with_envelope(|envelope| envelope.history.deferral.as_ref().is_some_and(matches_cause))
        .unwrap_or(false)
}

#[derive(Debug)]
pub(crate) enum DeferOutcome {
    /// The message is put back for this time.
    PutBack(Duration),
    /// The message has waited for long enough, and nothing is done. The caller may dead-letter it.
    WaitIsOver(Rejection),
}

/// Puts the message back because of `cause`, unless it has waited for long enough. Calls `before` with the
/// time of the put-back before it. `detail` is for operators.
pub(crate) async fn defer(
    job: &LeasedJob,
    cause: DeferralCause,
    detail: &str,
    before: impl FnOnce(Duration),
) -> Result<DeferOutcome, Error> {
    let (mut deferral, waited) = match earlier_wait(job, cause) {
        Some(found) => found,
        None => {
            let first =
                Deferral { cause: cause.code().to_owned(), since: rfc3339(job.times.now()), count: 0 };
            (first, Duration::ZERO)
        }
    };
    if let Some(reason) = reason_to_end(job, cause, &deferral, waited) {
        let tries = deferral.count;
        let detail = format!("{detail}; waited {waited:.0?}, in {tries} deliveries");
        return Ok(DeferOutcome::WaitIsOver(Rejection::new(reason, detail)));
    }
    deferral.count = deferral.count.saturating_add(1);
    let wait = cause.wait(deferral.count, job.core.runtime());
    before(wait);
    job.release_waiting(wait, Some(deferral)).await.map(DeferOutcome::PutBack)
}

/// Returns whether a failure of the handler in an outage costs no attempt: the outage has not yet lasted for
/// long enough. The put-back that follows may wait for the record of an effect, and does not decide again.
pub(super) fn may_wait_for_outage(job: &LeasedJob) -> bool {
    earlier_wait(job, DeferralCause::Outage)
        .is_none_or(|(deferral, waited)| deferral.count < MIN_PUT_BACKS || waited < OUTAGE_LIMIT)
}

/// Returns the reason for dead-lettering the message if it has waited for long enough.
fn reason_to_end(
    job: &LeasedJob,
    cause: DeferralCause,
    deferral: &Deferral,
    waited: Duration,
) -> Option<Reason> {
    let (limit, reason) = cause.limit(&job.settings)?;
    (deferral.count >= MIN_PUT_BACKS && waited >= limit).then_some(reason)
}

/// Returns the wait that an earlier delivery began for the same cause, and its duration. A failing hook at
/// the end of a job that did not run continues the wait for a hook before the run. The waits for another
/// program continue each other, because workers of several releases may receive the message by turns. A wait
/// whose start cannot be read counts as none.
fn earlier_wait(job: &LeasedJob, cause: DeferralCause) -> Option<(Deferral, Duration)> {
    let mut earlier_wait = job.with_envelope(|envelope| envelope.history.deferral.clone()).flatten()?;
    if cause == DeferralCause::BrokenHook && earlier_wait.cause == DeferralCause::BrokenAdmission.code() {
        cause.code().clone_into(&mut earlier_wait.cause);
    }
    let for_others = [DeferralCause::UnknownKind, DeferralCause::CodecNotReady];
    if cause.is_for_others() && for_others.iter().any(|other| other.code() == earlier_wait.cause) {
        cause.code().clone_into(&mut earlier_wait.cause);
    }
    if earlier_wait.cause != cause.code() {
        return None;
    }
    let since = parse_rfc3339(&earlier_wait.since)?;
    let waited = job.times.now().duration_since(since).unwrap_or_default();
    Some((earlier_wait, waited))
}
