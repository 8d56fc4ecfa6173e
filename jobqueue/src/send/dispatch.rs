//! Stores a prepared message: its blob, its position in a FIFO group, and the message.

use std::sync::Arc;

use tokio::time::Instant;

use super::prepare::Prepared;
use super::put::{SEND_BUDGET, put_with_retries, send_error};
use super::resend::remove_unsent;
use super::sent::Sent;
use super::unique::key_hold::KeyHold;
use crate::error::Error;
use crate::event::Event;
use crate::group_log::{self, Announced, Announcement, Confirmation};
use crate::queue_core::QueueCore;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use crate::storage::MessageRef;
use crate::storage::{Certainty, StoreError};
use crate::trace::OpenSpan;

/// Stores a prepared message: first its blob, then its position in its FIFO group, then the message.
pub(crate) async fn dispatch(core: &QueueCore, prepared: Prepared) -> Result<Sent, Error> {
    dispatch_held(core, prepared, None).await
}

/// Like [`dispatch`], but puts the message of unique work only while its sender holds the key.
pub(super) async fn dispatch_held(
    core: &QueueCore,
    mut prepared: Prepared,
    hold: Option<&mut KeyHold<'_>>,
) -> Result<Sent, Error> {
    let mut span = std::mem::replace(&mut prepared.span, OpenSpan::none());
    let (started, kind) = (Instant::now(), Arc::clone(&prepared.kind));
    // Boxed only in a span: unboxed, this future would contain the inner one twice.
    let sent = if span.is_some() {
        span.run(Box::pin(store_prepared(core, prepared, started, hold)).as_mut()).await
    } else {
        store_prepared(core, prepared, started, hold).await
    };
    let error = sent.as_ref().err().map(|error| error.kind().as_str());
    span.end(None, error);
    emit_sent(core, Some(kind), 1, sent.is_err().into(), started, error);
    sent
}

/// Emits the event of one send, with the number of its messages and of its failures.
#[allow(clippy::too_many_arguments, reason = "the fields of the event")]
pub(super) fn emit_sent(
    core: &QueueCore,
    kind: Option<Arc<str>>,
    messages: usize,
    failed: usize,
    started: Instant,
    error: Option<&'static str>,
) {
    let (queue, took) = (&core.name, started.elapsed());
    core.observers().emit(|| Event::Sent { queue: queue.clone(), kind, messages, failed, took, error });
}

/// Emits the event of a message that the application's transaction stores when it commits.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn sent_in_transaction(
    core: &QueueCore,
    mut sent: Prepared,
    started: Instant,
    message: MessageRef,
) -> Sent {
    sent.span.end(None, None);
    emit_sent(core, Some(Arc::clone(&sent.kind)), 1, 0, started, None);
    let stored = sent.stored(message, false);
    sent.sent(Some(stored))
}

async fn store_prepared(
    core: &QueueCore,
    prepared: Prepared,
    mut started: Instant,
    hold: Option<&mut KeyHold<'_>>,
) -> Result<Sent, Error> {
    if let Some(hold) = hold {
        // Boxed, because most work is not unique.
        return Box::pin(store_held(core, prepared, started, hold)).await;
    }
    if prepared.blob.is_some() {
        // Boxed, because most payloads are inside their messages.
        started = Box::pin(store_blob(core, &prepared, started)).await?;
    }
    put_prepared(core, prepared, started).await
}

async fn store_held(
    core: &QueueCore,
    prepared: Prepared,
    started: Instant,
    hold: &mut KeyHold<'_>,
) -> Result<Sent, Error> {
    let started = hold.renew_during(store_blob(core, &prepared, started)).await?;
    if let Err(error) = hold.ensure_time_to_put().await {
        remove_unsent(core, [&prepared]).await;
        return Err(error);
    }
    hold.run_within(put_prepared(core, prepared, started)).await
}

/// Puts a message whose blob is stored, in its order if it has one.
async fn put_prepared(core: &QueueCore, prepared: Prepared, started: Instant) -> Result<Sent, Error> {
    match prepared.announcement {
        // Boxed, because few messages need it.
        Some(announcement) => Box::pin(dispatch_in_order(core, prepared, announcement, started)).await,
        None => {
            let stored = put_with_retries(core, &prepared, started).await?;
            Ok(prepared.sent(Some(stored)))
        }
    }
}

async fn dispatch_in_order(
    core: &QueueCore,
    mut prepared: Prepared,
    mut announcement: Announcement,
    started: Instant,
) -> Result<Sent, Error> {
    let announcements = std::slice::from_mut(&mut announcement);
    let announced = group_log::announce(&core.groups, announcements).await.pop();
    if !matches!(announced, Some(Ok(Announced::Entered))) {
        remove_unsent(core, [&prepared]).await;
        return announced.transpose().map(|_| prepared.sent(None));
    }
    prepared.enter(announcement)?;
    match put_with_retries(core, &prepared, started).await {
        Ok(stored) => {
            let confirmation = Confirmation { announcement, is_single: !stored.may_be_duplicated };
            group_log::confirm(&core.groups, &[confirmation]).await.pop().transpose()?;
            Ok(prepared.sent(Some(stored)))
        }
        Err(error) => {
            if error.is_rejected() {
                group_log::retract(&core.groups, &[announcement]).await;
            }
            Err(error)
        }
    }
}

/// Stores the blob of a message whose send began at `started`. Returns the time from which the message's own
/// send budget counts: a slow upload does not use it up.
pub(super) async fn store_blob(
    core: &QueueCore,
    prepared: &Prepared,
    started: Instant,
) -> Result<Instant, Error> {
    let Some((reference, data)) = prepared.blob.as_deref() else { return Ok(started) };
    let give_up = started + SEND_BUDGET;
    let stored = core.claim_checks.store_by(give_up, reference, data.clone(), prepared.expires).await;
    // The message is not put, whether its blob is stored or not.
    if stored.as_ref().is_err_and(StoreError::is_ambiguous) {
        remove_unsent(core, [prepared]).await;
    }
    stored.map(|_| Instant::now()).map_err(|error| send_error(error, Certainty::NotApplied))
}
