//! Decides whether the handler of a message runs, and if not, the disposition of the message.
//!
//! [`Preparation::prepare`] lists the steps until the message is decoded and its hooks let the handler run.
//! The permits for the handler are taken last.

use std::any::Any;
use std::ops::ControlFlow::{self, Break, Continue};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::sleep;

use super::decode::{fetch, inline_payload};
use super::deferral::{DeferralCause, end_wait_for_known_kind, end_wait_for_run, waits_for_payload};
use super::disposition::{Disposition, NotRun, Rejection, deferred, rejected};
use super::executor::{DeliveryReport, Executor};
use super::handler_output::HandlerOutput;
use super::hook::{AdmissionContext, JobEnd};
use super::leased_job::LeasedJob;
use super::order_position::position_of;
use super::progress::{has_stored_checkpoint, read_stored_checkpoint};
use super::registry::UNKNOWN_KIND;
use crate::handler::Registration;
use crate::job::JobInfo;
use crate::job::outcome::chain;
use crate::lease::Loss;

pub(super) struct RunnableJob<'e> {
    pub(super) info: Arc<JobInfo>,
    pub(super) registration: &'e Registration,
    pub(super) message: Box<dyn Any + Send>,
}

impl Executor {
    /// Returns the job that can run, or breaks with the disposition of its message. `checked` is the result
    /// of checking the event. Writes the job into the report.
    pub(super) async fn admit<'a>(
        &'a self,
        leased_job: &'a LeasedJob,
        checked: Result<(), NotRun>,
        admission: AdmissionContext<'a>,
        report: &mut DeliveryReport,
    ) -> ControlFlow<NotRun, RunnableJob<'a>> {
        let Some(info) = leased_job.info().map(Arc::new) else {
            // An unreadable text has no payload.
            return Break(checked.err().unwrap_or_else(|| Box::new(Disposition::Abandon)));
        };
        let payload = match checked {
            Ok(()) => inline_payload(leased_job),
            Err(not_run) => Some(Err(not_run)),
        };
        let mut preparation = Preparation { executor: self, leased_job, info, admission };
        let prepared = {
            let preparing = pin!(async {
                match payload {
                    Some(payload) => preparation.prepare(Some(payload)).await,
                    None => {
                        // Boxed, because most payloads are inside their messages.
                        let preparing = Box::pin(preparation.prepare(None));
                        let prepared = leased_job.lease.stop_token().run_until_cancelled(preparing).await;
                        prepared.unwrap_or_else(|| Break(Box::new(too_late(leased_job))))
                    }
                }
            });
            admission.with_stop_grace(preparing).await
        };
        let prepared = prepared.unwrap_or_else(|| Break(Box::new(Disposition::Release(Duration::ZERO))));
        report.job = Some(Arc::clone(&preparation.info));
        let runnable = prepared?;
        preparation.take_permits(runnable.registration.kind).await.map_break(|not_run| {
            // The conditions for which the job was deferred are met: a later deferral starts its own backoff.
            end_wait_for_run(leased_job);
            not_run
        })?;
        Continue(runnable)
    }
}

struct Preparation<'a> {
    executor: &'a Executor,
    leased_job: &'a LeasedJob,
    info: Arc<JobInfo>,
    admission: AdmissionContext<'a>,
}

impl<'a> Preparation<'a> {
    /// Decodes the message for the handler, and asks the hooks whether the handler may run. `payload` is
    /// `None` if it must be downloaded, and an error if the check of the event has already decided.
    async fn prepare(
        &mut self,
        payload: Option<Result<Bytes, NotRun>>,
    ) -> ControlFlow<NotRun, RunnableJob<'a>> {
        let needs_download = payload.is_none();
        let needs_blob = needs_download || has_stored_checkpoint(self.leased_job);
        let hooks_first = needs_blob && !matches!(payload, Some(Err(_))) && self.hooks_decide_first();

        // 1. End a job that is over. It needs no permit, and ends even if its kind has none left.
        if hooks_first || (needs_download && self.is_known_to_be_over()) {
            self.end_if_over().await?;
        }

        // 2. Ask the hooks that decide before a blob is read.
        if hooks_first {
            self.ask_hooks().await?;
            self.check_may_begin()?;
        }

        // 3. Get the payload.
        let payload = match payload {
            Some(payload) => payload,
            None => {
                self.reserve_permit_for_download()?;
                // Boxed, because most payloads are inside their messages.
                Box::pin(self.download()).await
            }
        };

        // 4. Decode the message.
        let decoded = match payload {
            // Step 1 has found that the job is not over.
            Ok(data) if hooks_first => self.decode(&data).await,
            payload => self.end_or_decode(payload).await,
        };

        // 5. Ask the hooks, unless step 2 has asked them.
        if hooks_first || !self.needs_hooks(&decoded) {
            return decoded;
        }
        self.ask_hooks().await?;
        if decoded.is_break() {
            self.check_may_begin()?;
        }
        decoded
    }

    /// Returns whether the hooks are asked before a blob is read, with the payload or the checkpoint: if the
    /// job has a position in a FIFO group, or a hook that [decides first](super::hook::Hook::decides_first).
    /// Until they admit the job, its message may be received many times, and each delivery would read the
    /// blob; and a job that is put back for lack of a permit must have taken its turn before. The hooks of
    /// other jobs are asked afterwards, because a batch gives a turn only to a message that can be read.
    fn hooks_decide_first(&self) -> bool {
        position_of(self.leased_job).is_some() || self.executor.state.decide_first(&self.info)
    }

    /// Returns whether the worker knows, without a request, that the job is completed or cancelled.
    fn is_known_to_be_over(&self) -> bool {
        let Self { executor, leased_job, info, .. } = self;
        executor.is_remembered(leased_job, info) || executor.state.cancelled(info).is_some()
    }

    /// Breaks if the job was completed before or if an operator has cancelled it. Such a job ends even before
    /// its `notbefore` time, and even if it could not run.
    async fn end_if_over(&self) -> ControlFlow<NotRun> {
        let Self { executor, leased_job, info, .. } = self;
        // This may be a copy from a repeated send, whose payload is already gone.
        if executor.was_completed_before(leased_job, info).await {
            return Break(Box::new(Disposition::Discard));
        }
        match executor.state.cancelled(info) {
            // Unless its handler succeeded within the cancellation's grace, and a hook failed afterwards.
            Some(rejection) if !HandlerOutput::is_kept(leased_job) => Break(rejected(rejection)),
            _ => Continue(()),
        }
    }

    /// Asks the hooks whether the handler may run now. If the handler finished in an earlier delivery,
    /// completes the job instead.
    async fn ask_hooks(&self) -> ControlFlow<NotRun> {
        let Self { executor, leased_job, info, admission } = self;
        let state = &executor.state;
        if let Break(not_run) = state.admit(leased_job, info, *admission).await {
            if matches!(*not_run, Disposition::Release(_)) {
                leased_job.end_wait();
            }
            return Break(not_run);
        }
        if let Some(output) = HandlerOutput::kept_with(leased_job) {
            let failed = state.ending(leased_job, info, JobEnd::from(&output)).await.err();
            return Break(failed.unwrap_or_else(|| Box::new(Disposition::Complete)));
        }
        Continue(())
    }

    /// Reserves a permit for the handler, so that no payload is downloaded for a job that cannot start. A
    /// handler that finished in an earlier delivery needs none.
    fn reserve_permit_for_download(&self) -> ControlFlow<NotRun> {
        match self.executor.handlers.find(&self.info.kind) {
            Some(registration) if !HandlerOutput::is_kept(self.leased_job) => {
                self.reserve_permit(registration.kind)
            }
            _ => Continue(()),
        }
    }

    /// Reserves a permit for the handler before a download. If the last download failed, the permit is taken
    /// after this one: it may hang as well, and must not hold up jobs that could run. The delivery stays the
    /// probe of an open circuit.
    fn reserve_permit(&self, kind: &str) -> ControlFlow<NotRun> {
        let slot = self.admission.slot;
        if waits_for_payload(self.leased_job) {
            slot.give_back_permit();
            return Continue(());
        }
        match slot.reserve(kind) {
            Ok(()) => Continue(()),
            Err(wait) => {
                // Otherwise the wait goes on until the payload is decoded: the codec may lack a key.
                end_wait_for_known_kind(self.leased_job);
                Break(self.over_limit(wait))
            }
        }
    }

    /// Downloads the payload, and refreshes the queue's settings: the queue may have been paused meanwhile,
    /// and the worker refreshes no settings while all its slots are taken.
    async fn download(&self) -> Result<Bytes, NotRun> {
        let fetched = self.unless_cancelled(fetch(self.leased_job)).await?;
        let _ = self.leased_job.core.fresh_settings().await;
        fetched
    }

    /// Waits for a blob, unless an operator cancels the job first: a storage may take minutes for it.
    async fn unless_cancelled<T>(&self, read: impl Future<Output = T>) -> Result<T, NotRun> {
        let Self { leased_job, info, admission, .. } = self;
        tokio::select! {
            biased;
            read = read => Ok(read),
            () = admission.until_cancelled(leased_job, info) => {
                let cancelled = admission.cancelled(leased_job, info);
                // The operator may have taken the cancellation back.
                Err(cancelled.map_or_else(|| Box::new(Disposition::Release(Duration::ZERO)), rejected))
            }
        }
    }

    /// Decodes the message, unless the job is over or `payload` already says that it does not run.
    async fn end_or_decode(
        &mut self,
        payload: Result<Bytes, NotRun>,
    ) -> ControlFlow<NotRun, RunnableJob<'a>> {
        match payload.as_ref().map_err(Box::as_ref) {
            // The message of a completed job is discarded, even if it cannot be read.
            Err(Disposition::DeadLetter(_)) => {
                if self.executor.was_completed_before(self.leased_job, &self.info).await {
                    return Break(Box::new(Disposition::Discard));
                }
            }
            // The message comes back later, and the completion is checked then.
            Err(Disposition::Release(_)) if self.executor.state.cancelled(&self.info).is_none() => {}
            _ => self.end_if_over().await?,
        }
        match payload {
            Ok(data) => self.decode(&data).await,
            Err(not_run) => Break(not_run),
        }
    }

    /// Decodes the message for the handler. Upgrading an older message updates the version in `info`.
    async fn decode(&mut self, data: &[u8]) -> ControlFlow<NotRun, RunnableJob<'a>> {
        let leased_job = self.leased_job;
        let Some(registration) = self.executor.handlers.find(&self.info.kind) else {
            return Break(deferred(DeferralCause::UnknownKind, UNKNOWN_KIND.to_owned()));
        };
        let (version, media_type) = leased_job.payload_form();
        let (version, message) = match (registration.decode)(version, media_type.as_deref(), data) {
            Ok(decoded) => decoded,
            Err(error) => {
                return Break(match DeferralCause::of_undecodable(&error) {
                    Some(cause) => deferred(cause, chain(&error)),
                    None => rejected(Rejection::undecodable(&error)),
                });
            }
        };
        if self.info.version != version {
            Arc::make_mut(&mut self.info).version = version;
        }
        if has_stored_checkpoint(leased_job) {
            self.reserve_permit(registration.kind)?;
            // Boxed, because most checkpoints are inside their messages.
            let reading = Box::pin(read_stored_checkpoint(leased_job));
            let read = match self.unless_cancelled(reading).await {
                Ok(read) => read,
                Err(not_run) => return Break(not_run),
            };
            if let Err(error) = read {
                return Break(deferred(DeferralCause::PayloadUnreadable, chain(&error)));
            }
        }
        Continue(RunnableJob { info: Arc::clone(&self.info), registration, message })
    }

    /// Returns whether step 5 asks the hooks: about each job that can run, and about one that cannot in two
    /// cases.
    fn needs_hooks(&self, decoded: &ControlFlow<NotRun, RunnableJob<'_>>) -> bool {
        let Break(not_run) = decoded else { return true };
        // A deferred FIFO job must still take its turn: its log would treat the position as abandoned, and
        // the next job of the key would pass it.
        let is_deferred = matches!(**not_run, Disposition::Defer { .. });
        let takes_turn = is_deferred && position_of(self.leased_job).is_some();
        // A handler that finished in an earlier delivery does not need the payload.
        takes_turn || HandlerOutput::is_kept(self.leased_job)
    }

    /// Takes the handler's permits, and sleeps until its rate limiter lets it begin.
    async fn take_permits(&self, kind: &str) -> ControlFlow<NotRun> {
        self.check_may_begin()?;
        match self.admission.slot.admit(kind) {
            Ok(wait) if wait.is_zero() => Continue(()),
            Ok(wait) => {
                // Boxed, because few handlers wait.
                let _ = Box::pin(self.admission.stop.run_until_cancelled(sleep(wait))).await;
                self.check_may_begin()
            }
            Err(wait) => Break(self.over_limit(wait)),
        }
    }

    /// Breaks if the worker is stopping, the queue is paused or an operator has cancelled the job. Called
    /// after each wait: for the turn, for the payload, and for the rate limiter of the kind.
    fn check_may_begin(&self) -> ControlFlow<NotRun> {
        if let Some(rejection) = self.executor.state.cancelled(&self.info) {
            return Break(rejected(rejection));
        }
        let core = &self.leased_job.core;
        if self.admission.stop.is_cancelled() || core.settings().is_paused(core.now()) {
            return Break(Box::new(Disposition::Release(Duration::ZERO)));
        }
        Continue(())
    }

    fn over_limit(&self, wait: Duration) -> NotRun {
        Box::new(Disposition::OverLimit(self.executor.core.runtime().jitter(wait, 1.0..=2.0)))
    }
}

/// Returns the disposition of a message whose handler may not begin. After [`Loss::MaxRunTime`] the lease is
/// still held: the preparation, such as the download of the payload, took too long, and the message is put
/// back. Otherwise the lease is lost.
pub(super) fn too_late(leased_job: &LeasedJob) -> Disposition {
    match leased_job.lease.loss() {
        Some(Loss::MaxRunTime) => {
            let detail =
                "the job could not begin: its payload, its turn and its hooks took too long".to_owned();
            Disposition::Defer { cause: DeferralCause::SlowPreparation, detail }
        }
        _ => Disposition::Abandon,
    }
}
