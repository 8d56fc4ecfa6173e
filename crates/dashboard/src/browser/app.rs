//! The state that all requests share, and the part of it that belongs to one request.

use std::sync::{Arc, OnceLock};

use jobqueue_admin::Admin;
use tokio_util::sync::CancellationToken;

use crate::browser::access::Resolver;
use crate::browser::basic_auth::Logins;
use crate::browser::cached::Reads;
use crate::browser::looks::Looks;
use crate::browser::operations::Operations;
use crate::browser::redact::Redactor;
use crate::snapshot::Snapshots;

/// The dashboard while it runs.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) admin: Admin,
    pub(crate) snapshots: Snapshots,
    pub(crate) resolver: Resolver,
    pub(crate) redactor: Redactor,
    pub(crate) logins: Logins,
    /// True if requests have to name this machine.
    pub(crate) local_only: bool,
    pub(crate) looks: Arc<Looks>,
    pub(crate) reads: Reads,
    pub(crate) operations: Operations,
    pub(crate) stop: CancellationToken,
    /// The dashboard that answers in place of this one, once the storage was opened.
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
    /// The names of the storages that the sender may see.
    pub(crate) names: Vec<String>,
}

/// A request that was let through.
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
    /// Returns the dashboard that answers now.
    pub(crate) fn current(self: &Arc<Self>) -> &Arc<Self> {
        self.successor.get().unwrap_or(self)
    }

    /// Makes the next page read the storage again.
    pub(crate) fn changed(&self) {
        self.snapshots.expire();
        self.reads.clear();
    }
}
