//! The builder's options for the worker's record and journal.

use std::time::Duration;

use super::WorkerBuilder;
use crate::worker::options::PresenceSetting;

impl WorkerBuilder {
    /// Sets the interval at which the worker writes its record for operators: its jobs, their progress, and
    /// its counters. The default is 15 seconds; `None` for no record. A worker without a record reads no
    /// requests to cancel jobs: a job that waits for it or runs on it cannot be cancelled by its id.
    ///
    /// The record is a blob in the container `jobqueue-workers`, with [costs and
    /// permissions](crate::guide::permissions_and_costs) on Azure. Three intervals after its last write, a
    /// worker is shown as gone. In [`run_until_idle`](crate::Worker::run_until_idle), and on the virtual time
    /// of tests, a worker keeps a record only if this method was called; without it, `run_until_idle` lists
    /// the requests once. A failure to write the record is logged, and has no other effect.
    pub fn presence(mut self, every: impl Into<Option<Duration>>) -> Self {
        let (min, max) = (Duration::from_millis(100), Duration::from_secs(3600));
        self.options.presence =
            every.into().map_or(PresenceSetting::Off, |every| PresenceSetting::Every(every.clamp(min, max)));
        self
    }

    jobqueue_storage::setters! {
        /// Keeps a journal of ended jobs, completed or dead-lettered, for this time: at least an hour.
        /// Operators search the journal with `jobqueue_admin::Admin::history`. Off by default.
        ///
        /// The worker writes the journal every 15 seconds while jobs end, and after every 4,096 jobs or 1 MiB
        /// of their texts. SQLite and PostgreSQL have a table for the journal. On other storages it consists
        /// of blobs in the container `jobqueue-history`, each with about 4 MiB or an hour of a worker's jobs.
        /// A worker that is killed loses the entries since the last write, and no job: a job that it has
        /// completed since then has no entry. Errors are logged, and no job waits for the journal: while it
        /// cannot be written, about 32,768 jobs or 8 MiB wait, and further jobs are dropped and counted in the
        /// log.
        ///
        /// Workers of one storage share the journal, and each worker removes entries older than its own
        /// limit: the shortest time applies to all.
        ///
        /// The keys of jobs, up to 1,024 bytes, and the texts of their errors, up to 500 characters, are kept
        /// for the whole time: keep personal data out of both, or keep the time short.
        history(kept: impl Into<Option<Duration>>) => options.journal_retention =
            kept.into().map(|kept| kept.max(Duration::from_secs(3600)));
    }
}
