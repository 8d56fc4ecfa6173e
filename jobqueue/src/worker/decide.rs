//! Decides whether the handler runs, and if not, how the delivery ends.

use std::any::Any;
use std::sync::Arc;

use super::context::HandlerOutput;
use super::ending::Ending;
use super::hook::{Decision, Waiting};
use super::queue_worker::{DeliveryGuard, QueueWorker};
use super::unknown_share::Seen;
use super::{completion, hooks};
use crate::entropy;
use crate::handler::Registration;
use crate::job::JobInfo;
use crate::job::outcome::{Reason, chain};
use crate::queue::{self, Cause, Decoded, LeasedJob, Rejection};

/// The arguments of a handler's call.
pub(super) struct Ready<'w> {
    pub(super) job: Arc<JobInfo>,
    pub(super) registration: &'w Registration,
    pub(super) message: Box<dyn Any + Send>,
}

/// The decision about a message.
pub(super) enum Decided<'w> {
    /// The handler runs.
    Run(Ready<'w>),
    /// The delivery ends without the handler. Boxed because it is rare: a delivery's future has its full size for
    /// every message.
    End(Box<Ending>),
}

impl Decided<'_> {
    /// Returns whether the worker can run the message, as far as its handlers are concerned.
    pub(super) fn seen(&self) -> Seen {
        match self {
            Self::Run(_) => Seen::Known,
            Self::End(ending) => match **ending {
                Ending::Deferred(Cause::UnknownKind | Cause::NewerVersion, _) => Seen::Unknown,
                Ending::OverLimit(_) => Seen::OverLimit,
                _ => Seen::Known,
            },
        }
    }
}

fn end<'w>(ending: Ending) -> Decided<'w> {
    Decided::End(Box::new(ending))
}

/// Decides about a message that was read.
pub(super) async fn decide<'w>(
    worker: &'w QueueWorker,
    leased_job: &LeasedJob,
    decoded: Decoded,
    guard: &DeliveryGuard,
) -> Decided<'w> {
    let Some(job) = leased_job.info().map(Arc::new) else {
        return end(Ending::Rejected(no_event(decoded)));
    };
    let cancelled = worker.shared.cancelled(&job);
    let decoded = match decoded {
        Decoded::Rejected(rejection) => return end(Ending::Rejected(rejection)),
        Decoded::NotYet(wait) if cancelled.is_none() => return end(Ending::Released(wait)),
        // The job was done before, and its payload may be removed: this message is a copy from a repeated send.
        _ if completion::is_done(&worker.shared, leased_job, &job).await => {
            return end(Ending::Duplicate(job));
        }
        // Also before its time, and whether or not it could run.
        decoded => match cancelled {
            Some(rejection) => return end(Ending::Rejected(rejection)),
            None => decoded,
        },
    };
    let data = match decoded {
        Decoded::Rejected(rejection) => return end(Ending::Rejected(rejection)),
        Decoded::NotYet(wait) => return end(Ending::Released(wait)),
        Decoded::UnknownKind => {
            let detail = "no handler of this worker knows the kind";
            return end(Ending::Deferred(Cause::UnknownKind, detail.to_owned()));
        }
        Decoded::Unavailable(error) => {
            let cause = if error.is_missing() { Cause::PayloadMissing } else { Cause::PayloadUnreadable };
            return end(Ending::Deferred(cause, chain(&error)));
        }
        Decoded::Ready(data) => data,
    };
    let version = leased_job.with_envelope(|event| event.version).flatten();
    match read(worker, job, version, &data) {
        Ok(ready) => admit(worker, leased_job, ready, guard).await,
        Err(ending) => Decided::End(ending),
    }
}

/// Returns the rejection of a message that is not an event, with the decoder's reason.
fn no_event(decoded: Decoded) -> Rejection {
    match decoded {
        Decoded::Rejected(rejection) => rejection,
        _ => Rejection::new(Reason::DECODE_ERROR, "the message is not an event"),
    }
}

/// Decodes the payload as the handler's message.
fn read<'w>(
    worker: &'w QueueWorker,
    mut job: Arc<JobInfo>,
    version: Option<u32>,
    data: &[u8],
) -> Result<Ready<'w>, Box<Ending>> {
    let Some(registration) = worker.handlers.find(&job.kind) else {
        let detail = "no handler of this worker knows the kind".to_owned();
        return Err(Box::new(Ending::Deferred(Cause::UnknownKind, detail)));
    };
    match (registration.decode)(version, data) {
        Ok((version, message)) => {
            if job.version != version {
                Arc::make_mut(&mut job).version = version;
            }
            Ok(Ready { job, registration, message })
        }
        Err(error) if error.is_newer_version() => {
            Err(Box::new(Ending::Deferred(Cause::NewerVersion, chain(&error))))
        }
        Err(error) => Err(Box::new(Ending::Rejected(Rejection::undecodable(&error)))),
    }
}

/// Checks what the job needs besides its message: a readable checkpoint, and the consent of the hooks.
async fn admit<'w>(
    worker: &'w QueueWorker,
    leased_job: &LeasedJob,
    ready: Ready<'w>,
    guard: &DeliveryGuard,
) -> Decided<'w> {
    if let Err(error) = queue::read_stored_checkpoint(leased_job).await {
        return end(Ending::Deferred(Cause::PayloadUnreadable, chain(&error)));
    }
    let (shared, job) = (&worker.shared, &ready.job);
    let waiting = Waiting { stop: &worker.stop, until_idle: worker.until_idle, guard };
    match hooks::admit(shared, leased_job, job, waiting).await {
        Ok(decision) => {
            queue::note_running(leased_job);
            match decision {
                Decision::Run => match HandlerOutput::kept_with(leased_job) {
                    // It may have been cancelled while it waited for its turn.
                    None => match shared.cancelled(job) {
                        Some(rejection) => end(Ending::Rejected(rejection)),
                        None => within_limits(leased_job, ready, guard),
                    },
                    Some(output) => {
                        let told = hooks::completing(shared, leased_job, job, &output).await;
                        end(told.err().unwrap_or(Ending::Done(ready.job)))
                    }
                },
                Decision::Duplicate => end(Ending::Duplicate(ready.job)),
                Decision::Wait(wait) => {
                    leased_job.end_wait();
                    end(Ending::Released(wait))
                }
                Decision::Finished => {
                    let nothing = HandlerOutput::default();
                    let told = hooks::completing(shared, leased_job, job, &nothing).await;
                    end(told.err().unwrap_or(Ending::Duplicate(ready.job)))
                }
            }
        }
        Err(ending) => end(ending),
    }
}

/// Runs the job if its handler's limits allow it now. In a queue of several kinds that is known only here.
fn within_limits<'w>(leased_job: &LeasedJob, ready: Ready<'w>, guard: &DeliveryGuard) -> Decided<'w> {
    match guard.admit(ready.registration.kind) {
        Ok(()) => Decided::Run(ready),
        Err(wait) => {
            leased_job.end_wait();
            end(Ending::OverLimit(entropy::jitter(wait, 1.0..=2.0)))
        }
    }
}
