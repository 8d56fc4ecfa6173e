//! The actions of an operator, through the admin interface.

use std::time::Duration;

use jobqueue::{Error, QueueMessage};
use jobqueue_admin::{AccessLevel, Admin, DeadLetterFilter, JobFilter, JobReference, PauseOptions};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::actors::{Actor, subject};
use super::diary::Note;
use super::messages::Work;

/// The number of jobs of a canary.
const CANARY_SIZE: u64 = 1;
/// The time after which the operator stops a redrive that waits for its canary.
const CANARY_TIMEOUT: Duration = Duration::from_secs(600);

impl Actor {
    fn admin(&self) -> Admin {
        Admin::builder(self.node.storage()).access(AccessLevel::Operate).operator("ada").build()
    }

    /// Pauses the queue of work. The pause ends by itself, even if this process dies.
    pub(super) async fn pause_for(&self, time: Duration) -> Result<(), Error> {
        let options = PauseOptions::new().length(time).replacing(true);
        // A job that is received before the answer may run.
        let until = self.world.now() + time;
        self.admin().pause_with(Work::QUEUE, options).await?;
        self.note(Note::PausedUntil { millis: until.as_millis() as u64 });
        Ok(())
    }

    pub(super) async fn cancel_all(&self, key: &str) -> Result<(), Error> {
        let admin = self.admin();
        let plan = admin.plan_cancel(Work::QUEUE, &JobFilter::new().key(key)).await?;
        if plan.jobs.is_empty() {
            return Ok(());
        }
        let report = admin.cancel_all(&plan).await?;
        report.jobs.iter().for_each(|job| self.note(Note::CancelRequested { id: name(job) }));
        Ok(())
    }

    pub(super) async fn redrive_after_canary(&self) -> Result<(), Error> {
        let admin = self.admin();
        // Records all letters as redriven: the process may die before it gets the report, and only the report
        // says which letters were redriven.
        let before = admin.redrive(Work::QUEUE).filter(DeadLetterFilter::all()).dry_run(true).run().await?;
        before.jobs.iter().for_each(|job| self.node.redriven(&name(job)));
        let began = self.world.note(self.node.name(), "puts back after a canary".to_owned());
        // If most reads fail, they cannot show within an hour that the jobs of the canary are gone.
        let stop = CancellationToken::new();
        let admin = admin.stop_when(stop.clone());
        let redrive = admin.redrive(Work::QUEUE).plan(before.plan()).canary(CANARY_SIZE);
        let stopping = async {
            sleep(CANARY_TIMEOUT).await;
            stop.cancel();
            std::future::pending().await
        };
        let report = tokio::select! {
            report = redrive.run() => report?,
            () = stopping => unreachable!(),
        };
        let jobs: Vec<_> = report.jobs.iter().map(name).collect();
        self.note(Note::AfterCanary { began, canary: CANARY_SIZE as usize, jobs });
        Ok(())
    }
}

/// Returns the name of a job in the history.
fn name(job: &JobReference) -> String {
    job.source.as_deref().map_or_else(|| job.id.clone(), |source| subject(source, &job.id))
}
