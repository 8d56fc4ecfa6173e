//! The builder's options for records and journals.

use std::time::Duration;

use super::WorkerBuilder;
use crate::worker::options::PresenceSetting;

impl WorkerBuilder {
    /// Sets the interval at which the worker writes its record for operators: its jobs, their progress, and its counters. The default is 15
    /// seconds; `None` for no record. A worker without a record reads no requests to cancel jobs: a job that waits or runs here cannot be cancelled by
    /// its id.
    ///
    /// The record is a blob in the container `jobqueue-workers`, with [costs and permissions](crate::guide::permissions_and_costs) on Azure. A worker
    /// is shown as gone three intervals after its last write. [`run_until_idle`](crate::Worker::run_until_idle), and a worker on the virtual time of
    /// tests, keep a record only if this was called; the former otherwise lists the requests once. A record that cannot be written is
    /// logged, and changes nothing else.
    pub fn presence(mut self, every: impl Into<Option<Duration>>) -> Self {
        let least = Duration::from_millis(100);
        self.options.presence = every.into().map_or(PresenceSetting::Off, |every| {
            PresenceSetting::Every(every.clamp(least, Duration::from_secs(3600)))
        });
        self
    }

    jobqueue_storage::setters! {
        /// Keeps a journal of the jobs that have ended, completed or dead-lettered, for this time: at least an hour. Operators search it by
        /// `jobqueue_admin::Admin::history`. Off by default.
        ///
        /// The journal is written every 15 seconds while jobs end, and after every 4,096 jobs or 1 MiB of their texts. SQLite and PostgreSQL have a table for it. On
        /// other storages it is in blobs of the container `jobqueue-history`, each with some 4 MiB or an hour of a worker's jobs. A worker that is killed
        /// loses the entries since the last write, and no job: a job that it has completed then has no entry. Errors are logged, and no job waits for the journal: while it cannot be written, some 32,768 jobs or 8 MiB
        /// wait, and further ones are dropped and counted in the log.
        ///
        /// Workers of one storage share the journal, and each removes what is older than it keeps: the shortest time holds for all of them.
        ///
        /// The keys of jobs, up to 1,024 bytes, and the texts of their errors, up to 500 characters, are kept for the whole time: keep
        /// personal data out of both, or the time short.
        history(kept: impl Into<Option<Duration>>) => options.history =
            kept.into().map(|kept| kept.max(Duration::from_secs(3600)));
    }
}
