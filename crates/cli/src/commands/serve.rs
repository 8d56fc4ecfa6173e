//! `serve`: serves the dashboard, its metrics, its figures for autoscalers and its health checks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use clap::Args;
use jobqueue_admin::Admin;
use jobqueue_dashboard::{Dashboard, LinkTemplate, health};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::args::{Given, Global};
use crate::config::variable;
use crate::exit::Failure;
use crate::http;
use crate::opening::{self, LongLivedStorage};
use crate::session::{Need, note_unknown_operator};

/// The environment variables with the name and the password of the operator, who may make changes.
const OPERATOR_VARIABLES: (&str, &str) = ("JOBQUEUE_AUTH_USER", "JOBQUEUE_AUTH_PASSWORD");
/// The environment variables with the name and the password of the viewer, who may only read.
const VIEWER_VARIABLES: (&str, &str) = ("JOBQUEUE_VIEWER_USER", "JOBQUEUE_VIEWER_PASSWORD");
/// The environment variable with the token of programs that read the figures.
const TOKEN_VARIABLE: &str = "JOBQUEUE_METRICS_TOKEN";

/// The time that requests that have begun may take after the signal to stop.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Args)]
pub(crate) struct ServeArguments {
    /// The address and the port to listen on; port 0 is any free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8181")]
    listen: SocketAddr,
    /// Refuses all changes
    #[arg(long)]
    read_only: bool,
    /// States that a proxy in front authenticates the viewers; needs --read-only
    #[arg(long, requires = "read_only")]
    behind_proxy: bool,
    #[command(flatten)]
    links: LinkArguments,
}

#[derive(Clone, Args)]
struct LinkArguments {
    /// Links the page of each job to its trace, such as https://traces.example/{trace}; {queue}, {id},
    /// {source} and {kind} are other placeholders
    #[arg(long, value_name = "TEMPLATE")]
    trace_url: Option<LinkTemplate>,
    /// Links the page of each job to its log, such as https://logs.example/search?q={queue}+{id}
    #[arg(long, value_name = "TEMPLATE")]
    log_url: Option<LinkTemplate>,
}

pub(crate) async fn run(
    global: &Global,
    arguments: ServeArguments,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let logins = Logins::read()?;
    let is_local = arguments.listen.ip().is_loopback();
    if !is_local && !logins.has_login() && !arguments.behind_proxy {
        let (user, password) = OPERATOR_VARIABLES;
        return Err(Failure::Usage(format!(
            "{} can be reached by other machines: set {user} and {password}, or add --read-only \
             --behind-proxy if a proxy authenticates the viewers",
            arguments.listen
        )));
    }
    let need = if arguments.read_only { Need::Serve } else { Need::Change };
    let storages = opening::open(global, need).await?;
    let productions: Vec<String> =
        storages.iter().filter_map(|storage| storage.session.production().map(str::to_owned)).collect();
    let tasks = TaskTracker::new();
    let has_operator = logins.operator.is_some();
    // A proxy may forward the host name that browsers use.
    let local_only = is_local && !logins.has_login() && !arguments.behind_proxy;
    let (logins, links) = (Arc::new(logins), arguments.links);
    let pages = DashboardSettings { logins, local_only, links, tasks: tasks.clone(), stop: stop.clone() };
    let router = router(storages, &pages)?;
    let listener = listen(arguments.listen).await?;
    let address = listener.local_addr()?;
    // On standard output, because programs that start the server read the address there.
    match crate::output::print(&format!("http://{address}/")) {
        Err(Failure::ClosedPipe) => {}
        printed => printed?,
    }
    for context in productions.iter().filter(|_| !arguments.read_only) {
        crate::output::say(&format!(
            "`{context}` is a production context, but the pages ask for confirmation only before a purge"
        ));
    }
    if !has_operator && !arguments.read_only {
        note_unknown_operator(global);
    }
    if has_operator && !arguments.read_only && global.audit_file.is_none() {
        crate::output::say("changes are recorded in this log only; --audit-file records them in a file too");
    }
    let timeout = async {
        stop.cancelled().await;
        tokio::time::sleep(SHUTDOWN_TIMEOUT).await;
    };
    tokio::select! {
        () = http::serve(listener, router, stop) => {}
        // Without a limit, a slow client could keep the server from ending.
        () = timeout => {}
    }
    // A redrive ends between two dead letters, and makes the dead letters that it holds visible again.
    tasks.close();
    tasks.wait().await;
    Ok(())
}

async fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        Failure::Failed(format!(
            "cannot listen on {address}: {error}; --listen sets another address or port (port 0 is any free port)"
        ))
    })
}

/// Returns the pages and the health checks. The checks need no credentials: an orchestrator has none, and the
/// checks reveal nothing but health.
fn router(storages: Vec<LongLivedStorage>, settings: &DashboardSettings) -> Result<Router, Failure> {
    let mut dashboards = Vec::new();
    for LongLivedStorage { context, session, later } in storages {
        let dashboard = settings.dashboard(session.admin).given(later, |unavailable, later| {
            let settings = settings.clone();
            unavailable.until(async move { settings.dashboard(later.await.admin) })
        });
        dashboards.push((context, dashboard));
    }
    let last = dashboards.pop();
    let pages = match last {
        Some((_, dashboard)) if dashboards.is_empty() => dashboard.router(),
        last => {
            let named = dashboards.into_iter().chain(last);
            Dashboard::join(named.map(|(name, dashboard)| (name.unwrap_or_default(), dashboard)))?
        }
    };
    Ok(pages.merge(health::router([])))
}

/// The settings that all dashboards share.
#[derive(Clone)]
struct DashboardSettings {
    logins: Arc<Logins>,
    local_only: bool,
    links: LinkArguments,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl DashboardSettings {
    fn dashboard(&self, admin: Admin) -> Dashboard {
        let dashboard = Dashboard::new(admin)
            .tasks(self.tasks.clone())
            .stop_when(self.stop.clone())
            .given(self.links.trace_url.clone(), Dashboard::trace_url)
            .given(self.links.log_url.clone(), Dashboard::log_url);
        self.logins.apply_to(dashboard).local_only(self.local_only)
    }
}

/// The credentials that browsers and programs must send.
struct Logins {
    operator: Option<(String, String)>,
    viewer: Option<(String, String)>,
    token: Option<String>,
}

impl Logins {
    fn read() -> Result<Self, Failure> {
        let logins = Self {
            operator: credentials(OPERATOR_VARIABLES)?,
            viewer: credentials(VIEWER_VARIABLES)?,
            token: variable(TOKEN_VARIABLE)?,
        };
        if logins.token.is_some() && !logins.has_login() {
            let text = format!(
                "{TOKEN_VARIABLE} is set without {} or {}: no browser could open the pages",
                OPERATOR_VARIABLES.0, VIEWER_VARIABLES.0
            );
            return Err(Failure::Usage(text));
        }
        // The first login that matches decides, so the viewer would have the access of the operator.
        if logins.viewer.is_some() && logins.viewer == logins.operator {
            let text = format!(
                "{} and {} are the same login: a viewer needs another",
                OPERATOR_VARIABLES.0, VIEWER_VARIABLES.0
            );
            return Err(Failure::Usage(text));
        }
        Ok(logins)
    }

    fn has_login(&self) -> bool {
        self.operator.is_some() || self.viewer.is_some()
    }

    fn apply_to(&self, dashboard: Dashboard) -> Dashboard {
        dashboard
            .given(self.operator.as_ref(), |dashboard, (user, password)| {
                dashboard.credentials(user, password)
            })
            .given(self.viewer.as_ref(), |dashboard, (user, password)| dashboard.viewer(user, password))
            .given(self.token.as_deref(), Dashboard::metrics_token)
    }
}

fn credentials(variables: (&str, &str)) -> Result<Option<(String, String)>, Failure> {
    match (variable(variables.0)?, variable(variables.1)?) {
        (Some(user), Some(_)) if user.contains(':') => {
            Err(Failure::Usage(format!("{} must not contain a colon", variables.0)))
        }
        (Some(user), Some(password)) => Ok(Some((user, password))),
        (None, None) => Ok(None),
        _ => Err(Failure::Usage(format!("set both {} and {}, or neither", variables.0, variables.1))),
    }
}
