//! The state that all requests share, and the state of one request.

use std::sync::{Arc, OnceLock};

use jobqueue_admin::Admin;
use tokio_util::sync::CancellationToken;

use crate::browser::access::Resolver;
use crate::browser::basic_auth::Logins;
use crate::browser::cached::Reads;
use crate::browser::links::Links;
use crate::browser::looks::Looks;
use crate::browser::operations::Operations;
use crate::browser::redact::Redactor;
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
    /// True if the `Host` of a request must name this machine.
    pub(crate) local_only: bool,
    pub(crate) looks: Arc<Looks>,
    pub(crate) reads: Reads,
    pub(crate) operations: Operations,
    pub(crate) stop: CancellationToken,
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

    /// Makes the next page read the storage again, after a change.
    pub(crate) fn changed(&self) {
        self.snapshots.expire();
        self.reads.clear();
    }
}
