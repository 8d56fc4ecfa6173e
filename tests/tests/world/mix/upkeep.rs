//! The actions on whole queues: redrives, purges, sweeps and pauses.

use std::time::Duration;

use jobqueue::batch::{BatchSweepOptions, sweep_batches};
use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::maintenance::{SweepOptions, sweep};
use jobqueue::settings::Metadata;
use jobqueue::{Error, QueueMessage};
use jobqueue_testing::world::Fact;
use tokio::time::sleep;

use super::actors::{Actor, subject};
use super::diary::Note;
use super::messages::{Join, Part, Work};

impl Actor {
    pub(super) async fn redrive(&self, per_second: Option<u32>) -> Result<(), Error> {
        self.redrive_of::<Work>(per_second).await?;
        self.redrive_of::<Part>(per_second).await?;
        self.redrive_of::<Join>(per_second).await
    }

    async fn redrive_of<M: QueueMessage>(&self, per_second: Option<u32>) -> Result<(), Error> {
        let queue = self.queue::<M>().await?;
        // A redrive does not repeat: jobs that die again stay dead, so that the world comes to an end.
        let node = self.node.clone();
        let options = DeadLetterOptions::new().filter(move |letter| {
            node.redriven(&subject(&letter.source, &letter.id));
            true
        });
        let options = per_second.into_iter().fold(options, DeadLetterOptions::per_second);
        let redriven = queue.dead_letters()?.redrive(options).await;
        self.world.note(self.node.name(), format!("redriven: {redriven:?}"));
        redriven.map(drop)
    }

    pub(super) async fn purge(&self) -> Result<(), Error> {
        self.purge_of::<Work>().await?;
        self.purge_of::<Part>().await
    }

    async fn purge_of<M: QueueMessage>(&self) -> Result<(), Error> {
        let queue = self.queue::<M>().await?;
        let dead = queue.dead_letters()?;
        let (node, world) = (self.node.clone(), self.world.clone());
        let all = DeadLetterOptions::new().filter(move |letter| {
            world.note(node.name(), format!("purges {}", letter.id));
            node.account_for(&subject(&letter.source, &letter.id), "purged, perhaps");
            true
        });
        let purged = dead.purge(all).await;
        self.world.note(self.node.name(), format!("purged: {purged:?}"));
        purged.map(drop)
    }

    pub(super) async fn clear(&self) -> Result<(), Error> {
        let queue = self.queue::<Work>().await?;
        for spec in self.diary.plan.specs() {
            self.node.account_for(&spec.id, "cleared, perhaps");
        }
        let began = self.world.note(self.node.name(), "clears".to_owned());
        let cleared = queue.clear().await;
        if cleared.is_ok() {
            self.note(Note::Cleared { began });
            // Jobs that are sent later are not cleared.
            let history = self.world.history();
            let has_begun = |id: &str| {
                let of_job = history.iter().filter(|entry| entry.job.as_deref() == Some(id));
                of_job.into_iter().any(|entry| matches!(entry.fact, Fact::SendBegan { .. }))
            };
            let later = self.diary.plan.specs().filter(|spec| !has_begun(&spec.id));
            later.for_each(|spec| self.node.kept(&spec.id));
        }
        cleared
    }

    pub(super) async fn sweep(&self) -> Result<(), Error> {
        let storage = self.node.storage();
        let _ = sweep(&storage, SweepOptions::new().drained_queues(true)).await?;
        sweep_batches(&storage, BatchSweepOptions::new()).await?;
        Ok(())
    }

    pub(super) async fn pause(&self, time: Duration) -> Result<(), Error> {
        // The answer may be lost. The pause holds nevertheless.
        drop(self.set("paused", "true").await);
        sleep(time).await;
        self.diary.note_end_of_pauses(&self.world, self.node.name());
        loop {
            if self.set("paused", "false").await.is_ok() {
                return Ok(());
            }
            sleep(Duration::from_secs(2)).await;
        }
    }

    pub(super) async fn set_threshold(&self, attempts: u32) -> Result<(), Error> {
        self.node.sets_threshold(Work::QUEUE, attempts);
        self.set("poisonthreshold", &attempts.to_string()).await
    }

    /// Changes a setting of the queue of work.
    async fn set(&self, name: &str, value: &str) -> Result<(), Error> {
        self.world.note(self.node.name(), format!("sets {name} to {value}"));
        let queue = self.queue::<Work>().await?;
        let storage = self.node.storage();
        let metadata: Metadata = storage.queues().queue_metadata(queue.name()).await?;
        storage.queues().set_queue_metadata(queue.name(), &metadata.with(name, value)).await?;
        Ok(())
    }
}
