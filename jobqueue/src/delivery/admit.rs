//! Decides whether the handler of a message runs, and if not, the disposition of the message.
//!
//! A payload inside its message is decoded before the hooks are asked. A payload in a blob is fetched only
//! for a job that can run, so the hooks of a FIFO job are asked before the download. The permits for the
//! handler are taken last.

use std::any::Any;
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::sleep;

use super::decode::{fetch, inline_payload};
use super::deferral::{DeferralCause, end_wait_for_known_kind, end_wait_for_run, waits_for_payload};
use super::disposition::{Disposition, NotRun, Rejection, deferred, rejected};
use super::executor::{DeliveryReport, Executor};
use super::handler_output::HandlerOutput;
use super::hook::AdmissionContext;
use super::leased_job::LeasedJob;
use super::order_position::position_of;
use super::progress::{has_stored_checkpoint, read_stored_checkpoint};
use super::registry::UNKNOWN_KIND;
use super::slot::DeliverySlot;
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
    pub(super) async fn admit(
        &self,
        leased_job: &LeasedJob,
        checked: Result<(), NotRun>,
        admission: AdmissionContext<'_>,
        report: &mut DeliveryReport,
    ) -> ControlFlow<NotRun, RunnableJob<'_>> {
        let Some(mut info) = leased_job.info().map(Arc::new) else {
            // An unreadable text has no payload.
            return Break(checked.err().unwrap_or_else(|| Box::new(Disposition::Abandon)));
        };
        let data = match checked {
            Ok(()) => inline_payload(leased_job),
            Err(not_run) => Some(Err(not_run)),
        };
        let admitted = match data {
            Some(data) => self.decode_and_ask_hooks(leased_job, data, &mut info, admission).await,
            None => {
                // Boxed, because most payloads are inside their messages.
                let fetching = Box::pin(self.fetch_and_decode(leased_job, &mut info, admission));
                let fetched = leased_job.lease.stop_token().run_until_cancelled(fetching).await;
                fetched.unwrap_or_else(|| Break(Box::new(too_late(leased_job))))
            }
        };
        report.job = Some(info);
        let runnable = admitted?;
        self.take_permits(leased_job, &runnable.info, runnable.registration, admission).await?;
        Continue(runnable)
    }

    /// Decodes the message for the handler, then asks the hooks whether the handler may run.
    async fn decode_and_ask_hooks(
        &self,
        leased_job: &LeasedJob,
        data: Result<Bytes, NotRun>,
        info: &mut Arc<JobInfo>,
        admission: AdmissionContext<'_>,
    ) -> ControlFlow<NotRun, RunnableJob<'_>> {
        match self.check_and_decode(leased_job, data, info, admission.slot).await {
            // A deferred FIFO job must still take its turn: its log would treat the position as abandoned,
            // and the next job of the key would pass it. A handler that finished in an earlier delivery does
            // not need the payload.
            Break(not_run)
                if (matches!(*not_run, Disposition::Defer { .. }) && position_of(leased_job).is_some())
                    || HandlerOutput::is_kept(leased_job) =>
            {
                self.ask_hooks(leased_job, info, admission).await?;
                self.check_may_begin(leased_job, info, admission)?;
                Break(not_run)
            }
            Break(not_run) => Break(not_run),
            Continue(runnable) => {
                self.ask_hooks(leased_job, info, admission).await?;
                Continue(runnable)
            }
        }
    }

    /// Fetches and decodes a payload in a blob. If the job has a position in a FIFO group, or a hook that
    /// [decides first](super::hook::Hook::decides_first), the hooks are asked before the fetch: until they
    /// admit the job, its message may be received many times, and each delivery would fetch. Otherwise the
    /// hooks are asked after the fetch, because a batch gives a turn only to a message that can be read.
    async fn fetch_and_decode(
        &self,
        leased_job: &LeasedJob,
        info: &mut Arc<JobInfo>,
        admission: AdmissionContext<'_>,
    ) -> ControlFlow<NotRun, RunnableJob<'_>> {
        let hooks_first = position_of(leased_job).is_some() || self.state.decide_first(info);
        // Completed and cancelled jobs need no permit, and end even if their kind has none left.
        let is_over = self.is_remembered(leased_job, info) || self.state.cancelled(info).is_some();
        if (hooks_first || is_over)
            && let Some(not_run) = self.end_without_run(leased_job, info).await
        {
            return Break(not_run);
        }
        if hooks_first {
            self.ask_hooks(leased_job, info, admission).await?;
            self.check_may_begin(leased_job, info, admission)?;
        }
        // A handler that finished in an earlier delivery needs no permit.
        if let Some(registration) = self.handlers.find(&info.kind)
            && !HandlerOutput::is_kept(leased_job)
        {
            self.reserve_permit(leased_job, registration.kind, admission.slot)?;
        }
        let fetched = fetch(leased_job).await;
        // The queue may have been paused during the download, and the worker refreshes no settings while all
        // its slots are taken.
        let _ = leased_job.core.fresh_settings().await;
        match fetched {
            data if !hooks_first => self.decode_and_ask_hooks(leased_job, data, info, admission).await,
            Ok(data) => self.decode_message(leased_job, &data, info, admission.slot).await,
            failed => self.check_and_decode(leased_job, failed, info, admission.slot).await,
        }
    }

    /// Decodes the message for the handler, unless the job must not run.
    async fn check_and_decode(
        &self,
        leased_job: &LeasedJob,
        data: Result<Bytes, NotRun>,
        info: &mut Arc<JobInfo>,
        slot: &dyn DeliverySlot,
    ) -> ControlFlow<NotRun, RunnableJob<'_>> {
        let data = match data {
            // The message of a completed job is discarded, even if it cannot be read.
            Err(rejection) if matches!(*rejection, Disposition::DeadLetter(_)) => {
                let was_completed = self.was_completed_before(leased_job, info).await;
                return Break(if was_completed { Box::new(Disposition::Discard) } else { rejection });
            }
            // The message comes back later, and the completion is checked then.
            Err(release)
                if matches!(*release, Disposition::Release(_)) && self.state.cancelled(info).is_none() =>
            {
                return Break(release);
            }
            data => match (self.end_without_run(leased_job, info).await, data) {
                (Some(not_run), _) | (None, Err(not_run)) => return Break(not_run),
                (None, Ok(data)) => data,
            },
        };
        self.decode_message(leased_job, &data, info, slot).await
    }

    /// Returns the disposition of a job that was completed before or that an operator has cancelled. Such a
    /// job ends even before its `notbefore` time, and even if it could not run.
    async fn end_without_run(&self, leased_job: &LeasedJob, info: &JobInfo) -> Option<NotRun> {
        // This may be a copy from a repeated send, whose payload is already gone.
        if self.was_completed_before(leased_job, info).await {
            return Some(Box::new(Disposition::Discard));
        }
        // The handler succeeded within the cancellation's grace, and a hook failed afterwards.
        if HandlerOutput::is_kept(leased_job) {
            return None;
        }
        self.state.cancelled(info).map(rejected)
    }

    /// Decodes the message for the handler. Upgrading an older message updates the version in `info`.
    async fn decode_message(
        &self,
        leased_job: &LeasedJob,
        data: &[u8],
        info: &mut Arc<JobInfo>,
        slot: &dyn DeliverySlot,
    ) -> ControlFlow<NotRun, RunnableJob<'_>> {
        let Some(registration) = self.handlers.find(&info.kind) else {
            return Break(deferred(DeferralCause::UnknownKind, UNKNOWN_KIND.to_owned()));
        };
        let (version, media_type) = leased_job.payload_form();
        match (registration.decode)(version, media_type.as_deref(), data) {
            Ok((version, message)) => {
                if info.version != version {
                    Arc::make_mut(info).version = version;
                }
                if has_stored_checkpoint(leased_job) {
                    self.reserve_permit(leased_job, registration.kind, slot)?;
                    // Boxed, because most checkpoints are inside their messages.
                    if let Err(error) = Box::pin(read_stored_checkpoint(leased_job)).await {
                        return Break(deferred(DeferralCause::PayloadUnreadable, chain(&error)));
                    }
                }
                Continue(RunnableJob { info: Arc::clone(info), registration, message })
            }
            Err(error) if error.is_newer_version() => {
                Break(deferred(DeferralCause::NewerVersion, chain(&error)))
            }
            Err(error) => Break(rejected(Rejection::undecodable(&error))),
        }
    }

    /// Reserves a permit for the handler before the download, so that no payload is fetched for a job that
    /// cannot start. If the last download failed, the permit is taken after this one: it may hang as well,
    /// and must not hold up jobs that could run.
    fn reserve_permit(
        &self,
        leased_job: &LeasedJob,
        kind: &str,
        slot: &dyn DeliverySlot,
    ) -> ControlFlow<NotRun> {
        end_wait_for_known_kind(leased_job);
        if waits_for_payload(leased_job) {
            slot.give_back();
            return Continue(());
        }
        match slot.reserve(kind) {
            Ok(()) => Continue(()),
            Err(wait) => Break(self.over_limit(wait)),
        }
    }

    /// Asks the hooks whether the handler may run now. If the handler finished in an earlier delivery,
    /// completes the job instead.
    async fn ask_hooks(
        &self,
        leased_job: &LeasedJob,
        info: &JobInfo,
        admission: AdmissionContext<'_>,
    ) -> ControlFlow<NotRun> {
        let state = &self.state;
        match state.admit(leased_job, info, admission).await {
            Ok(None) => {}
            Ok(Some(Disposition::Release(wait))) => {
                leased_job.end_wait();
                return Break(Box::new(Disposition::Release(wait)));
            }
            Ok(Some(other)) => return Break(Box::new(other)),
            Err(failed) => return Break(failed),
        }
        if let Some(output) = HandlerOutput::kept_with(leased_job) {
            let failed = state.completing(leased_job, info, &output).await.err();
            return Break(failed.unwrap_or_else(|| Box::new(Disposition::Complete)));
        }
        Continue(())
    }

    /// Takes the handler's permits, and sleeps until its rate limiter lets it begin.
    async fn take_permits(
        &self,
        leased_job: &LeasedJob,
        info: &JobInfo,
        registration: &Registration,
        admission: AdmissionContext<'_>,
    ) -> ControlFlow<NotRun> {
        let started = async {
            self.check_may_begin(leased_job, info, admission)?;
            match admission.slot.admit(registration.kind) {
                Ok(wait) if wait.is_zero() => Continue(()),
                Ok(wait) => {
                    // Boxed, because few handlers wait.
                    let _ = Box::pin(admission.stop.run_until_cancelled(sleep(wait))).await;
                    self.check_may_begin(leased_job, info, admission)
                }
                Err(wait) => Break(self.over_limit(wait)),
            }
        };
        // The conditions for which the job was deferred are met: a later deferral starts its own backoff.
        started.await.map_break(|not_run| {
            end_wait_for_run(leased_job);
            not_run
        })
    }

    /// Breaks if the worker is stopping, the queue is paused or an operator has cancelled the job. Called
    /// after each wait: for the turn, for the payload, and for the rate limiter of the kind.
    fn check_may_begin(
        &self,
        leased_job: &LeasedJob,
        info: &JobInfo,
        admission: AdmissionContext<'_>,
    ) -> ControlFlow<NotRun> {
        if let Some(rejection) = self.state.cancelled(info) {
            return Break(rejected(rejection));
        }
        let core = &leased_job.core;
        if admission.stop.is_cancelled() || core.settings().is_paused(core.now()) {
            return Break(Box::new(Disposition::Release(Duration::ZERO)));
        }
        Continue(())
    }

    fn over_limit(&self, wait: Duration) -> NotRun {
        Box::new(Disposition::OverLimit(self.core.runtime().jitter(wait, 1.0..=2.0)))
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
