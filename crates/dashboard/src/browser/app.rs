//! The state that all requests share, and the state of one request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jobqueue_admin::Admin;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::browser::access::Resolver;
use crate::browser::basic_auth::Logins;
use crate::browser::cached::Reads;
use crate::browser::links::Links;
use crate::browser::log_limit::LogLimit;
use crate::browser::looks::Looks;
use crate::browser::operations::Operations;
use crate::browser::redact::Redactor;
use crate::browser::throughput::{MINUTES, Throughput};
use crate::snapshot::Snapshots;

/// The running dashboard of one storage.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) admin: Admin,
    pub(crate) snapshots: Snapshots,
    pub(crate) resolver: Resolver,
    pub(crate) redactor: Redactor,
    pub(crate) links: Links,
    pub(crate) logins: Logins,
    pub(crate) refused_logins: LogLimit,
    pub(crate) payload_reads: LogLimit,
    /// True if the `Host` of a request must name this machine.
    pub(crate) local_only: bool,
    pub(crate) looks: Arc<Looks>,
    pub(crate) reads: Reads,
    pub(crate) operations: Operations,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
    /// True once the last hour was counted from the journal, or is being counted.
    pub(crate) counts_journal: AtomicBool,
    /// The dashboard that replaces this one once its storage has been opened.
    pub(crate) successor: OnceLock<Arc<Self>>,
}

/// The dashboards of several storages, by their names.
#[derive(Debug)]
pub(crate) struct Joined(pub(crate) Vec<(String, Arc<App>)>);

/// The place of a page in the dashboard of several storages.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The name of the storage that the page shows; `None` for a page of all.
    pub(crate) here: Option<String>,
    /// The names of the storages that the operator may see.
    pub(crate) names: Vec<String>,
}

/// A request that the guard has admitted.
#[derive(Debug, Clone)]
pub(crate) struct AuthorizedRequest {
    pub(crate) app: Arc<App>,
    /// The operator's view, with their rights.
    pub(crate) admin: Admin,
    /// The relative path to the root of the dashboard.
    pub(crate) base: String,
    /// `None` in the dashboard of one storage.
    pub(crate) place: Option<Place>,
}

impl App {
    /// Returns the successor if there is one, and otherwise this dashboard.
    pub(crate) fn current(self: &Arc<Self>) -> &Arc<Self> {
        self.successor.get().unwrap_or(self)
    }

    /// Counts the jobs of the last hour from the journal, in the background and once: after a restart of this
    /// program, its looks have counted nothing yet. Until then, and if the journal cannot be read, the
    /// minutes before the first look are unknown.
    pub(crate) fn count_journal(self: &Arc<Self>) {
        if !self.looks.throughput(Throughput::has_begun) || self.counts_journal.swap(true, Ordering::AcqRel) {
            return;
        }
        let app = Arc::clone(self);
        self.tasks.spawn(async move {
            let until = app.admin.storage().runtime().clock().now();
            // Another minute, because the minute of the first look may be over.
            let count = app.reads.get_once(app.admin.count_ended(MINUTES + 1, Duration::from_secs(60)));
            if let Some(counts) = app.stop.run_until_cancelled(count).await {
                app.looks.add_journal(counts.as_ref().ok(), until);
            }
        });
    }

    /// Makes the next page read the storage again, after a change.
    pub(crate) fn changed(&self) {
        self.snapshots.expire();
        self.reads.clear();
    }
}
