//! The configuration of the dashboard by the embedding program.

use std::sync::atomic::AtomicBool;
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
use crate::browser::links::{LinkTemplate, Links};
use crate::browser::log_limit::LogLimit;
use crate::browser::looks::Looks;
use crate::browser::operations::Operations;
use crate::browser::redact::{Redactor, Shown};
use crate::browser::{joined, routes};
use crate::snapshot::Snapshots;

const DEFAULT_REFRESH: Duration = Duration::from_secs(5);

/// The dashboard of a storage. Its [`router`](Self::router) becomes a part of a web service.
///
/// Every client that reaches the dashboard has the rights of the [`Admin`](jobqueue_admin::Admin), unless
/// [`access`](Self::access) or [`credentials`](Self::credentials) restrict it. An `Admin` of
/// [`Admin::new`](jobqueue_admin::Admin::new) only reads.
///
/// The router also has [`/metrics`](crate::metrics) and [`/scale`](crate::scale), with the same access as the
/// pages. All of them share one [`Snapshots`], so that a scrape sends no requests while a page is open.
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
///     // Hides the payloads and keys of invoices, and of messages whose kind is unknown.
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
    links: Links,
    logins: Logins,
    local_only: bool,
    refresh: Duration,
    tasks: TaskTracker,
    stop: CancellationToken,
    successor: Option<BoxFuture<'static, Self>>,
}

impl Dashboard {
    /// Returns the dashboard of the storage of an `Admin`, or of snapshots that other routers share, such as
    /// [`scale`](crate::scale).
    pub fn new(snapshots: impl Into<Snapshots>) -> Self {
        Self {
            snapshots: snapshots.into(),
            resolver: Resolver::default(),
            redactor: Redactor::default(),
            links: Links::default(),
            logins: Logins::default(),
            local_only: false,
            refresh: DEFAULT_REFRESH,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            successor: None,
        }
    }

    jobqueue_storage::setters! {
        /// Calls `resolve` for the operator and the rights of each request. The function reads the extensions,
        /// into which layers of the embedding program put verified users. It can read headers too, but any
        /// client can send any header: believe only a header that the proxy in front removes from the requests
        /// of clients and sets itself, and only if clients reach this program through that proxy alone.
        access(resolve: impl Fn(&Parts) -> Access + Send + Sync + 'static) => resolver =
            Resolver::new(resolve);
    }

    /// Requires a user name and a password, by HTTP basic authentication. Each call adds a user. The user has
    /// all rights of the `Admin`, and the name appears as the operator in events and audits. Use this behind
    /// TLS only, because browsers send name and password with every request. The comparison takes the same
    /// time for every password. If [`access`](Self::access) is set, it must admit the request as well. A
    /// login with an empty password admits no request, so that a missing environment variable opens nothing.
    pub fn credentials(mut self, user: &str, password: &str) -> Self {
        self.logins.add(user, password, AccessLevel::Operate);
        self
    }

    /// Adds a user who may read all pages but change nothing. An empty password admits no request.
    pub fn viewer(mut self, user: &str, password: &str) -> Self {
        self.logins.add(user, password, AccessLevel::ReadOnly);
        self
    }

    /// Lets programs with the header `Authorization: Bearer <token>` read `/metrics` and `/scale`, and
    /// nothing else. For such requests [`access`](Self::access) is not called. All other requests need
    /// [`credentials`](Self::credentials), unless `access` alone decides on them. White space around the
    /// token is ignored. An empty token opens nothing.
    pub fn metrics_token(mut self, token: &str) -> Self {
        self.logins.set_token(token);
        self
    }

    jobqueue_storage::setters! {
        /// Answers only requests whose `Host` is `localhost` or a loopback address. Off by default. A
        /// dashboard without [`credentials`](Self::credentials) that listens on loopback needs this
        /// protection against DNS rebinding: another site can make its own name point to this machine, and
        /// its pages could then read and change everything that the dashboard can. Leave it off behind a
        /// proxy, which passes on the host name that browsers use.
        local_only(local: bool) => local_only;

        /// Calls `hook` before a page shows a text that may be personal. The page shows the returned text
        /// instead, or the text itself if the hook returns `None`. Ids, senders, queues and kinds are never
        /// hidden, because addresses, forms and the audit name jobs by them.
        ///
        /// Payloads and checkpoints are shown only after a click, with or without a hook. With a hook, dead
        /// letters cannot be searched by text or key, and jobs not by key or error, because a search would
        /// reveal hidden texts. The links of groups of errors have digests of the errors, without their
        /// numbers and quoted texts: a viewer can confirm a guess of such an error.
        redact(hook: impl Fn(&Shown<'_>) -> Option<String> + Send + Sync + 'static) => redactor =
            Redactor::new(hook);

        /// Links the page of each job that has a trace to that trace in another system.
        ///
        /// ```
        /// # use jobqueue::Storage; use jobqueue_admin::Admin; use jobqueue_dashboard::Dashboard;
        /// let dashboard = Dashboard::new(Admin::new(Storage::memory()))
        ///     .trace_url("https://traces.example.org/trace/{trace}".parse()?)
        ///     .log_url("https://logs.example.org/search?q={queue}+{id}".parse()?);
        /// # drop(dashboard.router());
        /// # Ok::<(), jobqueue::Error>(())
        /// ```
        trace_url(template: LinkTemplate) => links.trace = Some(template);

        /// Links the page of each job to its log in another system.
        log_url(template: LinkTemplate) => links.log = Some(template);

        /// Sets the interval of refreshes while a page is open. The default is 5 seconds, the minimum 100
        /// milliseconds.
        ///
        /// A refresh costs two requests, three for each queue and one for each worker, independent of the
        /// number of viewers. Without viewers, nothing is refreshed. The first page also counts the jobs of
        /// the last hour from the journal, once.
        refresh(interval: Duration) => refresh = interval.max(Duration::from_millis(100));

        /// Ends the event streams of open pages once `token` fires, and stops bulk operations after the dead
        /// letters, cancellations or job in progress. A server that waits for its connections during shutdown
        /// needs this.
        stop_when(token: CancellationToken) => stop;

        /// Runs redrives, purges, cancellations and previews on `tasks`. During shutdown, close and await the
        /// tracker after the token of [`stop_when`](Self::stop_when) has fired. Otherwise the end of the
        /// runtime interrupts a running operation, and its leased dead letters stay hidden for 10 minutes.
        tasks(tasks: TaskTracker);
    }

    /// Hands all requests over to the dashboard to which `opened` resolves, once it does. For a storage that
    /// is unavailable when the program starts. The paths stay the same; the settings are those of the new
    /// dashboard. [`router`](Self::router) must then be called on a runtime.
    #[doc(hidden)]
    pub fn until(mut self, opened: impl Future<Output = Self> + Send + 'static) -> Self {
        self.successor = Some(Box::pin(opened));
        self
    }

    /// Returns the routes, for [`Router::nest_service`] under any path, or as the whole service. The
    /// dashboard reads nothing before the first request.
    pub fn router(self) -> Router {
        routes::router(self.into_app())
    }

    /// Returns the routes of the dashboards of several storages. Each dashboard is below the name of its
    /// storage, such as `/prod/`. The page at the root has one row for each storage, and the header of every
    /// page links to the same page of the other storages.
    ///
    /// Each dashboard reads its own storage. A storage that does not answer delays the root page by at most a
    /// second, and the page shows its figures as unknown. Each dashboard keeps its own access, credentials,
    /// redaction and limits. The root page, `/api/storages` and the links list only storages whose dashboards
    /// admit the request. To decide that, each request calls the [`access`](Self::access) functions of all
    /// dashboards, even if it is for another storage. Browsers keep one name and password for all paths, so
    /// give all dashboards the same credentials. `/metrics` and `/scale` are below the names.
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
    /// [`Configuration`](jobqueue::ErrorKind::Configuration) if there is no dashboard, or if a name is given
    /// twice, does not consist of 1 to 63 ASCII letters, digits, `-` and `_`, or is reserved: `api`,
    /// `assets`, `events`, `live`, `metrics`, `overview`, `ready` and `scale`.
    pub fn join<N: Into<String>>(dashboards: impl IntoIterator<Item = (N, Self)>) -> Result<Router, Error> {
        joined::router(dashboards.into_iter().map(|(name, dashboard)| (name.into(), dashboard.into_app())))
    }

    fn into_app(self) -> Arc<App> {
        let Self {
            snapshots,
            resolver,
            redactor,
            links,
            logins,
            local_only,
            refresh,
            tasks,
            stop,
            successor,
        } = self;
        let admin = snapshots.admin().clone();
        let looks = Arc::new(Looks::new(snapshots.clone(), refresh));
        // The streams of this dashboard end when its successor takes over; the pages then connect to the
        // successor.
        let stop = if successor.is_some() { stop.child_token() } else { stop };
        let (reads, operations) = (Reads::new(refresh), Operations::new(tasks.clone(), stop.clone()));
        let app = Arc::new(App {
            admin,
            snapshots,
            resolver,
            redactor,
            links,
            logins,
            refused_logins: LogLimit::default(),
            payload_reads: LogLimit::logging_others(),
            local_only,
            looks,
            reads,
            operations,
            tasks: tasks.clone(),
            stop,
            counts_journal: AtomicBool::new(false),
            successor: OnceLock::new(),
        });
        if let Some(opened) = successor {
            tasks.spawn(succeed(Arc::clone(&app), opened));
        }
        app
    }
}

/// Hands requests over to the dashboard to which `opened` resolves.
async fn succeed(app: Arc<App>, opened: BoxFuture<'static, Dashboard>) {
    if let Some(dashboard) = app.stop.run_until_cancelled(opened).await {
        let _ = app.successor.set(dashboard.into_app());
        app.stop.cancel();
    }
}

jobqueue_storage::debug_fields! {
    Dashboard { snapshots, local_only, refresh }
}
