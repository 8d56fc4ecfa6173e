//! The position of a delivered message in its FIFO group: confirmed while the job runs or waits, and released
//! at the end of the job.
//!
//! An application that receives messages by hand gets them in any order. They release their positions too:
//! the next job of the key must not wait forever.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::leased_job::LeasedJob;
use crate::clock::unix_millis;
use crate::error::{Error, ErrorKind};
use crate::group_log::{EndState, GRACE, InOrder, Position};
use crate::job::outcome::chain;

/// The maximum put-back of a group's first job that need not be recorded in the log. The jobs behind it wait
/// for longer than that.
pub(crate) const MAX_UNLOGGED_DELAY: Duration = Duration::from_secs(59);

/// The minimum time for retrying to record a put-back in the log.
const MIN_LOG_UPDATE_TIME: Duration = Duration::from_secs(15 * 60);

/// The interval at which a worker confirms that the message of a running job exists.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(GRACE.as_secs() / 3);

/// The time that a delivery keeps its turn after its message became overdue: half of the minimum time in
/// which other deliveries mark the message.
const OVERDUE_MARGIN: Duration = Duration::from_secs(60);

/// Returns the entry and the turn of this delivery if it belongs to a FIFO group that has a log.
pub(crate) fn position_of(job: &LeasedJob) -> Option<InOrder> {
    if job.core.orders_groups {
        return None;
    }
    let read = || {
        let message = job.lease.message_id();
        let counts_deliveries = job.core.store().guarantees().counts_deliveries;
        let lock = if counts_deliveries { 0 } else { unix_millis(job.times.locked_until) };
        job.with_envelope(|envelope| InOrder::of(envelope, message, job.dequeue_count, lock)).flatten()
    };
    *job.in_order.get_or_init(read)
}

/// Ends the position of a job that is done or about to be dead-lettered, if the job belongs to a FIFO group.
///
/// # Errors
/// The log cannot be changed, or a newer delivery of the message has the turn; in the latter case the lease
/// is lost.
pub(crate) async fn end_turn(job: &LeasedJob, end: EndState) -> Result<(), Error> {
    let Some(position) = position_of(job) else { return Ok(()) };
    job.core.groups.end(position, end).await
}

/// Ends the position that another send of a finished job may have created. If another copy has the turn, that
/// copy ends the position.
pub(super) async fn end_position_of_done(job: &LeasedJob) -> Result<(), Error> {
    match end_turn(job, EndState::Done).await {
        Err(error) if error.kind() == ErrorKind::LeaseLost => Ok(()),
        ended => ended,
    }
}

/// Returns whether the job belongs to a FIFO group whose log says that it is done.
pub(crate) async fn is_done_in_order(job: &LeasedJob) -> Result<bool, Error> {
    match position_of(job) {
        Some(position) => job.core.groups.is_done(position.entry).await,
        None => Ok(false),
    }
}

/// Confirms at intervals that the message exists, from the time the delivery has its turn until its lease
/// ends.
pub(crate) fn keep_expected(job: &LeasedJob) {
    let Some(position) = position_of(job) else { return };
    let core = &job.core;
    let logs = (core.groups.of(&position.entry), core.detached_groups.of(&position.entry));
    let (Ok(known), Ok(log)) = logs else { return };
    let left = known.latest().time_left(&position.entry, core.groups.clock.known_now()).unwrap_or(GRACE);
    let InOrder { entry, turn } = position;
    let clock = Arc::clone(&core.detached_groups.clock);
    let confirm = move || {
        let (log, clock) = (Arc::clone(&log), Arc::clone(&clock));
        async move {
            let until = Instant::now() + GRACE + OVERDUE_MARGIN;
            let due = clock.now().await.after(GRACE);
            Ok(log.change(move |log| log.extend(&entry, turn, due)).await?.then_some(until))
        }
    };
    job.keep_turn(
        HEARTBEAT_INTERVAL,
        left.min(HEARTBEAT_INTERVAL),
        Instant::now() + left + OVERDUE_MARGIN,
        confirm,
    );
}

/// Returns whether the log must record that the message is put back for `delay`. A job behind others needs
/// that only if `delay` exceeds the grace, which begins when the job becomes the first.
pub(super) fn needs_log_update(job: &LeasedJob, delay: Duration) -> bool {
    let place = |InOrder { entry, turn }: InOrder| {
        let log = job.core.groups.of(&entry).ok()?;
        log.latest().position(&entry, turn, job.core.groups.clock.known_now())
    };
    delay > MAX_UNLOGGED_DELAY
        && position_of(job).is_some_and(|own| {
            let waits =
                |place| matches!(place, Position::Behind { overdue: false, .. } | Position::Crowded { .. });
            delay > GRACE || !place(own).is_some_and(waits)
        })
}

/// Records that the message is about to be put back for `delay`, so that the jobs behind it do not mark it
/// overdue. While the log cannot be changed, the message stays leased: without the record, those jobs would
/// pass it. If it `may_come_sooner`, or during a shutdown, it is put back for [`MAX_UNLOGGED_DELAY`] instead,
/// which needs no record. Returns the delay.
pub(super) async fn extend_due(job: &LeasedJob, delay: Duration, may_come_sooner: bool) -> Duration {
    let Some(InOrder { entry, turn }) = position_of(job).filter(|_| needs_log_update(job, delay)) else {
        return delay;
    };
    let note = || async {
        let due = job.core.groups.clock.now().await.after(delay + GRACE);
        job.core.groups.change(&entry, move |log| log.extend(&entry, turn, due)).await
    };
    // A job that has exceeded its maximum run time still has its lease.
    let until = job.lease.renew_for(MIN_LOG_UPDATE_TIME);
    let noted = async { if may_come_sooner { note().await } else { job.retry_until(until, note).await } };
    let noted = tokio::select! {
        biased;
        () = job.core.options.settle_now.cancelled() => return MAX_UNLOGGED_DELAY,
        noted = noted => noted,
    };
    match noted {
        Ok(_) => delay,
        Err(error) if may_come_sooner && error.is_retryable() => MAX_UNLOGGED_DELAY,
        Err(error) => {
            crate::log::warn!(queue = %job.core.name, job = job.logged_id(), error = %chain(&error), "the group log does not show that the message is delayed; it may lose its position");
            delay
        }
    }
}
