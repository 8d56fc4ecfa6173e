//! The configuration of the dashboard by the embedding program.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::http::request::Parts;
use futures_util::future::BoxFuture;
use jobqueue::Error;
use jobqueue_admin::AccessLevel;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::browser::access::{Access, Resolver};
use crate::browser::app::App;
use crate::browser::basic_auth::Logins;
use crate::browser::cached::Reads;
use crate::browser::looks::Looks;
use crate::browser::operations::Operations;
use crate::browser::redact::{Redactor, Shown};
use crate::browser::{joined, routes};
use crate::snapshot::Snapshots;

const DEFAULT_REFRESH: Duration = Duration::from_secs(5);

/// The dashboard of a storage. [`router`](Self::router) makes it a part of a web service.
///
/// A client that reaches it has the rights of the [`Admin`](jobqueue_admin::Admin), unless [`access`](Self::access) or
/// [`credentials`](Self::credentials) say otherwise. An `Admin` of [`Admin::new`](jobqueue_admin::Admin::new) only reads.
///
/// The router also has [`/metrics`](crate::metrics) and [`/scale`](crate::scale), with the same access as the pages. All read the storage
/// through one [`Snapshots`]: a scrape sends no requests while a page is open.
///
/// ```
/// use jobqueue::{CancellationToken, Storage};
/// use jobqueue_admin::{AccessLevel, Admin};
/// use jobqueue_dashboard::{Dashboard, Field};
///
/// let stop = CancellationToken::new();
/// let admin = Admin::builder(Storage::memory()).access(AccessLevel::Operate).build();
/// let router = Dashboard::new(admin)
///     .credentials("ada", "a password from the environment")
///     // Payloads of invoices and their keys are hidden, and those of messages whose kind is not known.
///     .redact(|shown| match (shown.kind, shown.field) {
///         (None | Some("invoice"), Field::Payload | Field::Key) => Some("hidden".to_owned()),
///         _ => None,
///     })
///     .stop_when(stop.clone())
///     .router();
/// # drop(router);
/// ```
#[must_use = "a dashboard is served by its `router`"]
pub struct Dashboard {
    snapshots: Snapshots,
    resolver: Resolver,
    redactor: Redactor,
    logins: Logins,
    local_only: bool,
    refresh: Duration,
    tasks: TaskTracker,
    stop: CancellationToken,
    successor: Option<BoxFuture<'static, Self>>,
}

impl Dashboard {
    /// Returns the dashboard of the storage of an `Admin`, or of snapshots that others use too, such as [`health`](crate::health).
    pub fn new(snapshots: impl Into<Snapshots>) -> Self {
        Self {
            snapshots: snapshots.into(),
            resolver: Resolver::default(),
            redactor: Redactor::default(),
            logins: Logins::default(),
            local_only: false,
            refresh: DEFAULT_REFRESH,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            successor: None,
        }
    }

    jobqueue_storage::setters! {
        /// Calls `resolve` for the sender and the rights of each request, by its headers or by what layers of the embedding
        /// program have put into its extensions.
        access(resolve: impl Fn(&Parts) -> Access + Send + Sync + 'static) => resolver =
            Resolver::new(resolve);
    }

    /// Requires a name and its password, by HTTP basic authentication. Each call adds a user. The name is
    /// that of the operator in events and audits, with all rights of the `Admin`. Use it behind TLS only: browsers send both with
    /// every request. The comparison takes the same time for every password. [`access`](Self::access) is asked as well, if it is set.
    /// A login with an empty password opens nothing: a variable that is missing lets nobody in.
    pub fn credentials(mut self, user: &str, password: &str) -> Self {
        self.logins.add(user, password, AccessLevel::Operate);
        self
    }

    /// Adds a user and a password that open the pages without any change. An empty password opens nothing.
    pub fn viewer(mut self, user: &str, password: &str) -> Self {
        self.logins.add(user, password, AccessLevel::ReadOnly);
        self
    }

    /// Lets programs with the header `Authorization: Bearer <token>` read `/metrics` and `/scale`, and nothing else;
    /// [`access`](Self::access) is not asked about them. All other requests need [`credentials`](Self::credentials), unless `access` alone
    /// decides on them. White space around the token does not count. An empty token opens nothing.
    pub fn metrics_token(mut self, token: &str) -> Self {
        self.logins.set_token(token);
        self
    }

    jobqueue_storage::setters! {
        /// Answers only requests whose `Host` is `localhost` or a loopback address. The default is no. A dashboard without
        /// [`credentials`](Self::credentials) that listens on loopback needs it: a page of another site can let its own name point to this machine, and then
        /// reads and changes what the dashboard shows. Behind a proxy, which passes on the name that browsers use, leave it off.
        local_only(local: bool) => local_only;

        /// Asks `hook` before it shows a text that may be personal: `Some` is shown instead, `None` shows the text as it is.
        ///
        /// Payloads and checkpoints are shown after a click only, with or without a hook. With a hook, dead letters cannot be
        /// searched by text or key, which would tell what is hidden.
        redact(hook: impl Fn(&Shown<'_>) -> Option<String> + Send + Sync + 'static) => redactor =
            Redactor::new(hook);

        /// Sets the interval of refreshes while a page is open. The default is 5 seconds, the minimum 100 milliseconds.
        ///
        /// A refresh costs two requests, three for each queue and one for each worker, independent of the number of
        /// viewers. Without viewers there is none.
        refresh(interval: Duration) => refresh = interval.max(Duration::from_millis(100));

        /// Ends the streams of open pages, and bulk operations between two dead letters, once `token` fires. A server that waits for
        /// its connections when it stops needs this.
        stop_when(token: CancellationToken) => stop;

        /// Runs redrives, purges and previews on `tasks`. A program that stops closes and awaits it after [`stop_when`](Self::stop_when)'s token
        /// has fired: otherwise the end of the runtime cuts an operation, whose dead letters are then hidden for 10 minutes.
        tasks(tasks: TaskTracker);
    }

    /// Answers by the dashboard to which `opened` resolves, as soon as it does: that of a storage that is away when the program starts. Its pages are then
    /// below the same paths, and its settings are its own. [`router`](Self::router) then needs a runtime.
    #[doc(hidden)]
    pub fn until(mut self, opened: impl Future<Output = Self> + Send + 'static) -> Self {
        self.successor = Some(Box::pin(opened));
        self
    }

    /// Returns the routes, for [`Router::nest_service`] under any path, or as the whole service. Nothing is read from the storage until the
    /// first request.
    pub fn router(self) -> Router {
        routes::router(self.into_app())
    }

    /// Returns the routes of the dashboards of several storages: each below its name, such as `/prod/`, and a page at the root with one row for
    /// each storage. The head of every page links to the same page of the other storages.
    ///
    /// A storage is read by its own dashboard: one that does not answer delays the page of all by at most a second, and its figures are shown as
    /// unknown. Access, credentials, redaction and limits stay those of each dashboard. The root page, `/api/storages` and the links list only
    /// storages whose dashboards admit the request. To decide that, the functions of [`access`](Self::access) of all dashboards are called with each
    /// request, also with one for another storage. Browsers keep one name and password for all
    /// paths: give all dashboards the same ones. `/metrics` and `/scale` are below the names.
    ///
    /// ```
    /// # fn main() -> Result<(), jobqueue::Error> {
    /// # use jobqueue::Storage; use jobqueue_admin::Admin; use jobqueue_dashboard::Dashboard;
    /// # let (prod, staging) = (Storage::memory(), Storage::memory());
    /// let dashboards = [("prod", prod), ("staging", staging)].map(|(name, storage)| {
    ///     (name, Dashboard::new(Admin::new(storage)).credentials("ada", "a password from the environment"))
    /// });
    /// let router = Dashboard::join(dashboards)?;
    /// # drop(router); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Configuration`](jobqueue::ErrorKind::Configuration): there is no dashboard; or a name is given twice, is not of 1 to 63 ASCII letters,
    /// digits, `-` and `_`, or is one that the router uses itself: `api`, `assets`, `events`, `live`, `metrics`, `overview`, `ready` and `scale`.
    pub fn join<N: Into<String>>(dashboards: impl IntoIterator<Item = (N, Self)>) -> Result<Router, Error> {
        joined::router(dashboards.into_iter().map(|(name, dashboard)| (name.into(), dashboard.into_app())))
    }

    fn into_app(self) -> Arc<App> {
        let Self { snapshots, resolver, redactor, logins, local_only, refresh, tasks, stop, successor } =
            self;
        let admin = snapshots.admin().clone();
        let looks = Arc::new(Looks::new(snapshots.clone(), refresh));
        // The pages that follow this dashboard listen to its successor afterwards.
        let stop = if successor.is_some() { stop.child_token() } else { stop };
        let (reads, operations) = (Reads::new(refresh), Operations::new(tasks.clone(), stop.clone()));
        let app = Arc::new(App {
            admin,
            snapshots,
            resolver,
            redactor,
            logins,
            local_only,
            looks,
            reads,
            operations,
            stop,
            successor: OnceLock::new(),
        });
        if let Some(opened) = successor {
            tasks.spawn(succeed(Arc::clone(&app), opened));
        }
        app
    }
}

/// Hands the requests over to the dashboard to which `opened` resolves.
async fn succeed(app: Arc<App>, opened: BoxFuture<'static, Dashboard>) {
    if let Some(dashboard) = app.stop.run_until_cancelled(opened).await {
        let _ = app.successor.set(dashboard.into_app());
        app.stop.cancel();
    }
}

jobqueue_storage::debug_fields! {
    Dashboard { snapshots, local_only, refresh }
}
