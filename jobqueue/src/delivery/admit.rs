//! Decides whether the handler of a message runs, and if not, the disposition of the message.

use std::any::Any;
use std::sync::Arc;

use bytes::Bytes;

use super::context::HandlerOutput;
use super::deferral::{Cause, note_running};
use super::disposition::{DeliveryReport, Disposition};
use super::executor::Executor;
use super::hook::Waiting;
use super::leased_job::LeasedJob;
use super::progress::read_stored_checkpoint;
use super::registry::UNKNOWN_KIND;
use super::rejection::Rejection;
use crate::handler::Registration;
use crate::job::JobInfo;
use crate::job::outcome::{Reason, chain};

pub(super) struct RunnableJob<'e> {
    pub(super) info: Arc<JobInfo>,
    pub(super) registration: &'e Registration,
    pub(super) message: Box<dyn Any + Send>,
}

/// The end of a delivery without a run. Boxed because it is rare: a delivery's future has its full size for every
/// message.
type NotRun = Box<Disposition>;

fn reject(rejection: Rejection) -> NotRun {
    Box::new(Disposition::DeadLetter(rejection))
}

fn defer(cause: Cause, detail: String) -> NotRun {
    Box::new(Disposition::Defer { cause, detail })
}

impl Executor {
    /// Decides about a message that was read, and reports its job.
    pub(super) async fn admit(
        &self,
        leased_job: &LeasedJob,
        decoded: Result<Bytes, NotRun>,
        waiting: Waiting<'_>,
        report: &mut DeliveryReport,
    ) -> Result<RunnableJob<'_>, NotRun> {
        let Some(mut info) = leased_job.info().map(Arc::new) else {
            return Err(decoded.err().unwrap_or_else(|| {
                reject(Rejection::new(Reason::DECODE_ERROR, "the message is not an event"))
            }));
        };
        let admitted = match self.read(leased_job, decoded, &mut info).await {
            Ok((registration, message)) => {
                let runnable = RunnableJob { info: Arc::clone(&info), registration, message };
                self.ask_hooks(leased_job, runnable, waiting).await
            }
            Err(not_run) => Err(not_run),
        };
        report.job = Some(info);
        admitted
    }

    /// Reads the handler's message, unless the job must not run. An upgraded message changes the version in `info`.
    async fn read(
        &self,
        leased_job: &LeasedJob,
        decoded: Result<Bytes, NotRun>,
        info: &mut Arc<JobInfo>,
    ) -> Result<(&Registration, Box<dyn Any + Send>), NotRun> {
        let cancelled = self.state.cancelled(info);
        let data = match decoded {
            Err(never) if matches!(*never, Disposition::DeadLetter(_)) => return Err(never),
            Err(later) if matches!(*later, Disposition::Release(_)) && cancelled.is_none() => {
                return Err(later);
            }
            // The job was done before, and its payload may be removed: this message is a copy from a repeated send.
            _ if self.is_done(leased_job, info).await => return Err(Box::new(Disposition::Discard)),
            // Also before its time, and whether or not it could run.
            decoded => match cancelled {
                Some(rejection) => return Err(reject(rejection)),
                None => decoded?,
            },
        };
        let Some(registration) = self.handlers.find(&info.kind) else {
            return Err(defer(Cause::UnknownKind, UNKNOWN_KIND.to_owned()));
        };
        let form = leased_job.with_envelope(|event| (event.version, event.media_type()));
        let (version, media_type) = form.unwrap_or_default();
        match (registration.decode)(version, media_type.as_deref(), &data) {
            Ok((version, message)) => {
                if info.version != version {
                    Arc::make_mut(info).version = version;
                }
                match read_stored_checkpoint(leased_job).await {
                    Ok(()) => Ok((registration, message)),
                    Err(error) => Err(defer(Cause::PayloadUnreadable, chain(&error))),
                }
            }
            Err(error) if error.is_newer_version() => Err(defer(Cause::NewerVersion, chain(&error))),
            Err(error) => Err(reject(Rejection::undecodable(&error))),
        }
    }

    /// Asks the hooks and the limits whether the handler may run now. In a queue of several kinds its limit is known
    /// only here.
    async fn ask_hooks<'e>(
        &'e self,
        leased_job: &LeasedJob,
        runnable: RunnableJob<'e>,
        waiting: Waiting<'_>,
    ) -> Result<RunnableJob<'e>, NotRun> {
        let (state, info) = (&self.state, &runnable.info);
        let decided = state.admit(leased_job, info, waiting).await?;
        note_running(leased_job);
        match decided {
            None => {}
            // The job is done already.
            Some(Disposition::Complete) => {
                let nothing = HandlerOutput::default();
                let failed = state.completing(leased_job, info, &nothing).await.err();
                return Err(failed.unwrap_or_else(|| Box::new(Disposition::Discard)));
            }
            Some(Disposition::Release(wait)) => {
                leased_job.end_wait();
                return Err(Box::new(Disposition::Release(wait)));
            }
            Some(other) => return Err(Box::new(other)),
        }
        if let Some(output) = HandlerOutput::kept_with(leased_job) {
            let failed = state.completing(leased_job, info, &output).await.err();
            return Err(failed.unwrap_or_else(|| Box::new(Disposition::Complete)));
        }
        // It may have been cancelled while it waited for its turn.
        if let Some(rejection) = state.cancelled(info) {
            return Err(reject(rejection));
        }
        match waiting.slot.admit(runnable.registration.kind) {
            Ok(()) => Ok(runnable),
            Err(wait) => {
                leased_job.end_wait();
                Err(Box::new(Disposition::OverLimit(self.core.runtime().jitter(wait, 1.0..=2.0))))
            }
        }
    }
}
