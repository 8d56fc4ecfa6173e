//! The operator's view of a storage: waiting and running jobs, workers, dead letters and their causes, and
//! the actions that fix them.
//!
//! [`Admin`] works on any [`Storage`] and knows no message types: jobs are [raw data](RawJob). The command
//! line and the dashboard are thin layers over it. All data types implement [`serde::Serialize`]; their names
//! in JSON do not change within a major version, and fields may be added.
//!
//! Reading is always allowed. Each change is an [`Action`]: the [`AccessLevel`] must allow it, and an
//! [`OperatorEvent`] before and after it records operator, action, selection and result. Read-only functions
//! are cancel safe: dropping their futures changes nothing.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use jobqueue::Storage;
//! use jobqueue_admin::{AccessLevel, Admin, DeadLetterFilter, RawSend};
//!
//! let admin = Admin::builder(Storage::memory())
//!     .access(AccessLevel::Operate)
//!     .operator("ada")
//!     .on_event(|event| println!("{} {} {}: {:?}", event.operator, event.action, event.subject, event.result))
//!     .build();
//! admin.create_queue("mails").await?;
//! admin.send("mails", RawSend::json("mail", r#"{"to":"bob@example.org"}"#)?).await?;
//! admin.pause("mails").await?;
//! let mails = admin.queue("mails").await?;
//! assert_eq!(mails.paused, Some(true));
//! assert_eq!(mails.length, Some(1));
//!
//! // A preview, then the redrive of exactly what it found.
//! let rejected = DeadLetterFilter::new().reason("rejected");
//! let preview = admin.redrive("mails").filter(rejected).dry_run(true).run().await?;
//! println!("{} dead letters would be put back", preview.count);
//! let _ = admin.redrive("mails").plan(preview.plan()).per_second(20).run().await?;
//! # Ok(()) }
//! ```

#![forbid(unsafe_code)]

mod access;
mod batch_children;
mod batch_continuation;
mod batch_text;
mod batches;
mod builder;
mod bulk;
mod canary;
mod cancel;
mod cancel_plan;
mod checks;
mod dead_letters;
mod errors;
mod event;
mod explain;
mod found_letters;
mod given;
mod groups;
mod history;
mod in_time;
mod job;
mod job_counts;
mod jobs;
mod leaders;
mod listed;
mod membership;
mod oldest;
mod outcome;
mod pause;
mod payload;
mod peek;
mod plan;
mod price;
mod queues;
mod report;
mod schedules;
mod send;
mod settings;
mod text;
mod throughput;
mod upkeep;
mod workers;

use std::sync::Arc;

use jobqueue::__internals::UntypedQueue;
use jobqueue::clock::Clock;
use jobqueue::message::MessageDefaults;
use jobqueue::settings::{Metadata, QueueSettings, SettingOverrides, SettingWarning};
use jobqueue::{Error, ErrorKind, Storage};
use jobqueue_storage::log::guarded;
use jobqueue_storage::text::chain;
use tokio_util::sync::CancellationToken;

pub use access::{AccessLevel, Action};
pub use batch_children::OpenChild;
pub use batch_continuation::OpenContinuation;
pub use batches::{BatchDetail, BatchList, BatchOverview, ParentBatch};
pub use builder::AdminBuilder;
pub use bulk::Bulk;
pub use cancel::{CancelReport, Cancellation};
pub use cancel_plan::CancelPlan;
use checks::CheckedTypes;
pub use dead_letters::DeadLetterFilter;
pub use errors::ErrorGroup;
use event::{ActionResult, ActionTarget, Pending, Recorders};
pub use event::{OperatorEvent, OperatorResult};
#[doc(hidden)]
pub use explain::QueueCounts;
pub use explain::{
    EmptyIn, Explanation, IdentifiedJob, JobPlace, KeyBacklog, KeyCount, Obstacle, QueueExplanation,
    QueueObstacle, QueuePace, SlotHolder, SlotUse,
};
pub use found_letters::DeadLetterPage;
#[doc(hidden)]
pub use given::Given;
pub use groups::{GroupEntry, GroupList, GroupOverview};
pub use history::{HistoryFilter, HistoryPage, HistoryRecord};
#[doc(hidden)]
pub use job::senders_text;
pub use job::{JobReference, JobState, RawBatch, RawDeadLetter, RawDeferral, RawJob};
pub use job_counts::JobCounts;
pub use jobs::{JobFilter, JobPage};
pub use leaders::LeaderOverview;
pub use oldest::{HELD_UP, OldestJob};
pub use outcome::{DeadAgain, PlanOutcome};
pub use pause::{Pause, PauseOptions};
pub use payload::{BlobReference, RawPayload};
pub use peek::MAX_INSPECTED;
pub use plan::{DeadLetterPlan, PlannedLetter};
#[doc(hidden)]
pub use price::AzurePrices;
pub use queues::{EffectiveSetting, QueueHold, QueueOverview};
pub use report::{BulkProgress, BulkReport, SkippedJob};
pub use schedules::{ScheduleOverview, ScheduleTrigger};
pub use send::RawSend;
pub use settings::{SettingChange, SettingsPlan};
#[doc(hidden)]
pub use text::{grouped, indented_json, parse_duration, shell_word, short_duration};
pub use throughput::{EndedJobs, JournalCounts};
pub use upkeep::ClockSkew;
pub use workers::WorkerOverview;
#[doc(hidden)]
pub use workers::silence;

#[doc(inline)]
pub use jobqueue::__internals::{
    Counters, HISTOGRAM_BOUNDS, JobProgress, KindLimits, ListeningQueue, RunningJob, WorkerRecord,
};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The operator's view of a storage. Cheap to clone. See the [module](self) for an example.
///
/// All methods that only read are safe to drop at any time. Reading costs requests: each method says how
/// many.
#[derive(Clone)]
pub struct Admin {
    storage: Storage,
    access: AccessLevel,
    operator: Arc<str>,
    recorders: Recorders,
    stop: CancellationToken,
    /// The message types whose payloads are checked before they are sent.
    checked: Arc<CheckedTypes>,
    /// The most messages of a state that are read for the outcome of a plan.
    max_searched: usize,
}

impl Admin {
    /// Returns a read-only view; [`builder`](Self::builder) makes one that [may act](AdminBuilder::access).
    pub fn new(storage: Storage) -> Self {
        Self::builder(storage).build()
    }

    /// Returns a builder for a view that may make changes.
    pub fn builder(storage: Storage) -> AdminBuilder {
        AdminBuilder {
            admin: Self {
                storage,
                access: AccessLevel::default(),
                operator: "unknown".into(),
                recorders: Recorders::default(),
                stop: CancellationToken::new(),
                checked: Arc::default(),
                max_searched: jobs::MAX_SEARCHED,
            },
        }
    }

    /// Returns the same view for another operator, who may take the actions that `access` and the access
    /// level of this view both allow. For programs that serve several operators.
    #[must_use]
    pub fn acting_as(&self, operator: impl Into<Arc<str>>, access: &AccessLevel) -> Self {
        Self { operator: operator.into(), access: self.access.and(access), ..self.clone() }
    }

    /// Returns the same view, whose passes over many messages end early once `token` fires.
    /// [`inspect`](Self::inspect) and [`search_dead_letters`](Self::search_dead_letters) return the messages
    /// found so far. A [redrive or a purge](Bulk) finishes the dead letters in progress, at most 16, and
    /// stops; so does the search for the jobs of its canary. [`cancel_all`](Self::cancel_all) makes no
    /// further requests, and notifies the workers of those that it has made. Messages that a stopped pass
    /// has leased become visible again at once, or at the end of their leases if the storage fails, and if
    /// the future of the pass is dropped instead.
    #[must_use]
    pub fn stop_when(&self, token: CancellationToken) -> Self {
        Self { stop: token, ..self.clone() }
    }

    /// Returns the actions that this view may take.
    pub fn access(&self) -> &AccessLevel {
        &self.access
    }

    /// Returns the name of the operator.
    pub fn operator(&self) -> &str {
        &self.operator
    }

    /// Returns the storage.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Returns the kinds of the types of [`check_payloads_of`](AdminBuilder::check_payloads_of), in
    /// alphabetical order: [`send`](Self::send) checks their payloads.
    pub fn checked_kinds(&self) -> Vec<&'static str> {
        self.checked.kinds()
    }

    /// Checks the access, runs `work`, and records the result.
    async fn act<T>(
        &self,
        action: Action,
        target: impl Into<ActionTarget>,
        work: impl Future<Output = Result<T, Error>>,
        summary: impl FnOnce(&T) -> String,
    ) -> Result<T, Error> {
        let target = target.into();
        let jobs = target.jobs.clone();
        self.act_on_jobs(action, target, work, |done| ActionResult { detail: summary(done), jobs }).await
    }

    /// Checks the access, records the start, runs `work`, and records the result with the jobs that it has
    /// changed.
    async fn act_on_jobs<T>(
        &self,
        action: Action,
        target: ActionTarget,
        work: impl Future<Output = Result<T, Error>>,
        to_result: impl FnOnce(&T) -> ActionResult,
    ) -> Result<T, Error> {
        self.require_for(action, &target)?;
        let mut pending = self.pending(action, target);
        pending.started()?;
        let result = work.await;
        match pending.ended(result.as_ref().map(to_result)) {
            Err(unrecorded) if result.is_ok() => Err(unrecorded),
            Err(unrecorded) => {
                guarded(|| tracing::error!(error = %chain(&unrecorded), "an action failed"));
                result
            }
            Ok(()) => result,
        }
    }

    /// Returns `Forbidden`, and records the refusal, unless the access level allows `action`. For programs
    /// that ask an operator for confirmation before they act.
    ///
    /// # Errors
    /// [`Forbidden`](ErrorKind::Forbidden) if the access does not allow it.
    pub fn require(&self, action: Action, subject: &str) -> Result<(), Error> {
        self.require_for(action, &subject.into())
    }

    /// Fires the token that ends an action early, such as the token given to [`stop_when`](Self::stop_when),
    /// and records which operator fired it. For programs that run actions in the background.
    ///
    /// # Errors
    /// [`Forbidden`](ErrorKind::Forbidden) if the access does not allow `action`: an operator may stop only
    /// actions that they may take. [`Storage`](ErrorKind::Storage) if the stop cannot be recorded: the token
    /// is fired nevertheless.
    ///
    /// # Cancel safety
    /// If the future is dropped, the token may or may not be fired.
    #[doc(hidden)]
    pub async fn stop(&self, action: Action, subject: &str, token: &CancellationToken) -> Result<(), Error> {
        self.require(action, subject)?;
        // The token fires before the stop is recorded: a full audit disk must not keep a purge running.
        token.cancel();
        let recorded = self.act(action, subject, async { Ok(()) }, |()| "asked for its end".to_owned()).await;
        recorded.map_err(|error| {
            Error::new(error.kind(), "the action was asked to end, but that could not be recorded")
                .with_source(error)
        })
    }

    fn require_for(&self, action: Action, target: &ActionTarget) -> Result<(), Error> {
        if self.access.allows(action) {
            return Ok(());
        }
        let forbidden = self.forbidden(action);
        if let Err(error) = self.pending(action, target.clone()).ended(Err(&forbidden)) {
            guarded(|| tracing::error!(error = %chain(&error), "an action was refused"));
        }
        Err(forbidden)
    }

    fn forbidden(&self, action: Action) -> Error {
        let text = format!("the access level of `{}` does not allow the action `{action}`", self.operator);
        Error::new(ErrorKind::Forbidden, text)
    }

    fn pending(&self, action: Action, target: ActionTarget) -> Pending<'_> {
        Pending::new(&self.recorders, &self.storage, &self.operator, action, target)
    }

    fn clock(&self) -> &dyn Clock {
        self.storage.runtime().clock()
    }

    /// Opens an existing queue.
    async fn open(&self, queue: &str) -> Result<UntypedQueue, Error> {
        UntypedQueue::open(&self.storage, queue, &self.operator).await
    }
}

/// Returns the settings that the metadata of a queue sets for all its workers.
fn resolve(metadata: &Metadata) -> (QueueSettings, Vec<SettingWarning>) {
    QueueSettings::resolve(metadata, &MessageDefaults::new(), &SettingOverrides::default())
}

jobqueue_storage::debug_fields! {
    Admin { storage, access, operator }
}
