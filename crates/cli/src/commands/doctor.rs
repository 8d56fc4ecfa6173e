//! `doctor`: checks the storage.

use clap::Args;
use jobqueue::maintenance::SweepOptions;
use jobqueue::storage::{Access, Advice, StoreError};
use jobqueue::{ErrorKind, QueueName};
use jobqueue_admin::QueueOverview;
use serde::Serialize;

use super::cost::{Cost, Prices};
use super::queues::waiting;
use crate::args::Global;
use crate::contexts::{self, Item};
use crate::exit::Failure;
use crate::session::{Need, Session};
use crate::text::{age, cell, things};

#[derive(Args)]
pub(crate) struct DoctorArguments {
    /// Checks only this queue, in each context; may be repeated
    #[arg(long)]
    queue: Vec<String>,
    /// Fails also if there is a warning, or a check that could not be made
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    prices: Prices,
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Ok,
    /// The check could not be made.
    Unknown,
    Warning,
    Failed,
}

#[derive(Serialize)]
pub(super) struct Check {
    pub(super) check: &'static str,
    subject: Option<String>,
    verdict: Verdict,
    detail: String,
}

impl Check {
    fn new(check: &'static str, subject: Option<&str>, verdict: Verdict, detail: impl Into<String>) -> Self {
        Self { check, subject: subject.map(str::to_owned), verdict, detail: detail.into() }
    }

    fn from_result<T>(
        check: &'static str,
        subject: Option<&str>,
        result: Result<T, jobqueue::Error>,
        ok: impl FnOnce(T) -> (Verdict, String),
    ) -> Self {
        let (verdict, detail) = match result {
            Ok(value) => ok(value),
            Err(error) => (Verdict::Failed, format!("{error:?}")),
        };
        Self::new(check, subject, verdict, detail)
    }
}

pub(crate) async fn run(global: &Global, arguments: DoctorArguments) -> Result<(), Failure> {
    // Opening fails for a SQLite file that is damaged or has another schema.
    let opened = Session::open_all(global, Need::Inspect).await?;
    let checks = contexts::read(&opened, async |session| Ok(run_checks(session, &arguments).await)).await?;
    let mut checks: Vec<_> = checks.into_iter().map(|item| item.or_else(no_connection)).collect();
    // Failures come first, then warnings.
    checks.sort_by_key(|item| std::cmp::Reverse(item.get().map(|check| check.verdict)));
    let columns = ["CHECK", "SUBJECT", "RESULT", "DETAIL"];
    let printed = contexts::print(global.output, &checks, "checks", &columns, |check| vec![overview(check)]);
    let checks: Vec<&Check> = checks.iter().filter_map(Item::get).collect();
    let count = |verdict| checks.iter().filter(|check| check.verdict == verdict).count();
    match (count(Verdict::Failed), count(Verdict::Warning), count(Verdict::Unknown)) {
        (0, warnings, unknown) if warnings + unknown > 0 && arguments.strict => {
            let (warnings, unknown) = (things(warnings, "warning"), things(unknown, "unknown result"));
            Err(Failure::Failed(format!("{warnings} and {unknown}, and --strict allows none")))
        }
        (0, _, _) => printed,
        (failed, _, _) => Err(Failure::Failed(format!("{} failed", things(failed, "check")))),
    }
}

async fn run_checks(session: &Session, arguments: &DoctorArguments) -> Vec<Check> {
    let storage = session.admin.storage().description();
    let queues = match session.admin.queues().await {
        Ok(queues) => queues,
        Err(error) => return vec![no_connection(format!("{storage}: {error:?}"))],
    };
    let connected = format!("{storage} has {}", things(queues.len(), "queue"));
    let mut checks = vec![Check::new("connection", None, Verdict::Ok, connected)];
    let chosen = |queue: &QueueOverview| arguments.queue.is_empty() || arguments.queue.contains(&queue.name);
    let unknown = missing_queues(&arguments.queue, &queues);
    let queues: Vec<_> = queues.into_iter().filter(chosen).collect();
    let queue_results = async {
        let mut checks = Vec::new();
        for queue in &queues {
            checks.extend(queue_checks(session, queue).await);
        }
        checks
    };
    // Concurrently: if the blobs do not answer, several of these wait until their requests time out.
    let (queue_results, advice, clock, workers, orphans) = tokio::join!(
        queue_results,
        storage_advice(session),
        clock(session),
        workers(session, arguments.prices, &queues),
        orphans(session)
    );
    checks.extend(queue_results.into_iter().chain(unknown).chain(advice).chain([clock]));
    checks.extend(workers.into_iter().chain([orphans]));
    checks
}

fn no_connection(error: String) -> Check {
    Check::new("connection", None, Verdict::Failed, error)
}

fn missing_queues(wanted: &[String], queues: &[QueueOverview]) -> Vec<Check> {
    let is_missing = |name: &&String| !queues.iter().any(|queue| queue.name == **name);
    let check = |name: &String| Check::new("queue", Some(name), Verdict::Failed, "there is no such queue");
    wanted.iter().filter(is_missing).map(check).collect()
}

pub(super) async fn queue_checks(session: &Session, queue: &QueueOverview) -> Vec<Check> {
    let name = Some(queue.name.as_str());
    let mut checks = Vec::new();
    checks.extend(queue.error.as_deref().map(|error| Check::new("queue", name, Verdict::Failed, error)));
    if queue.paused.is_none() {
        return checks;
    }
    checks.push(match queue.warnings.as_slice() {
        [] => Check::new("settings", name, Verdict::Ok, "all settings are used"),
        warnings => Check::new("settings", name, Verdict::Warning, warnings.join("; ")),
    });
    if let Some(pause) = &queue.pause {
        let text = format!("workers fetch nothing from the queue: it is paused{pause}");
        checks.push(Check::new("paused", name, Verdict::Warning, text));
    }
    if let Some(dead) = queue.dead_letters.filter(|dead| *dead > 0) {
        let command = session.command(&["dead", "list", &queue.name]);
        let detail = format!("about {dead}; {command} shows them");
        checks.push(Check::new("dead letters", name, Verdict::Warning, detail));
    }
    checks.extend(held_up(session, queue));
    if let Ok(queue_name) = QueueName::new(queue.name.as_str()) {
        checks.extend(advice(session, &queue_name).await);
        let access = session.admin.storage().queues().check_access(&queue_name, Access::Process).await;
        let able = |()| (Verdict::Ok, "a worker may receive, update and delete".to_owned());
        checks.push(Check::from_result("permissions", name, access.map_err(Into::into), able));
    }
    checks
}

/// Reports jobs that wait for others of their keys, if they are all visible ones, or have waited for long.
fn held_up(session: &Session, queue: &QueueOverview) -> Option<Check> {
    let is_long = queue.is_held_up_for_long();
    if !queue.held_up && !is_long {
        return None;
    }
    let jobs = if queue.held_up { "each visible job waits" } else { "jobs wait" };
    let oldest = queue.oldest_held_up.map_or_else(|| "an unknown time".to_owned(), age);
    let groups = session.command(&["groups", &queue.name]);
    let failing = session.command(&["peek", &queue.name, "--state", "backing-off"]);
    let running = session.command(&["workers", "--jobs"]);
    let detail = format!(
        "{jobs} for another of its key, the oldest for {oldest}; {groups} shows the first job of each key, {failing} the error with which it \
         is tried again, {running} since when it runs"
    );
    let verdict = if is_long { Verdict::Warning } else { Verdict::Ok };
    Some(Check::new("held up", Some(&queue.name), verdict, detail))
}

/// Reports settings of the queue at the storage itself that should be changed.
async fn advice(session: &Session, queue: &QueueName) -> Vec<Check> {
    advice_checks(Some(queue.as_str()), session.admin.storage().queues().advice(queue).await)
}

/// Reports settings of the storage as a whole that should be changed.
async fn storage_advice(session: &Session) -> Vec<Check> {
    advice_checks(None, session.admin.storage().queues().storage_advice().await)
}

fn advice_checks(name: Option<&str>, advice: Result<Vec<Advice>, StoreError>) -> Vec<Check> {
    let all = match advice {
        Ok(all) => all,
        Err(error) => {
            let error = jobqueue::Error::from(error);
            return vec![Check::new("advice", name, Verdict::Failed, format!("{error:?}"))];
        }
    };
    let check = |advice: Advice| {
        let verdict = if advice.is_warning { Verdict::Warning } else { Verdict::Ok };
        Check::new("advice", name, verdict, advice.text)
    };
    all.into_iter().map(check).collect()
}

/// Reports the workers, the queues that no worker serves, the open circuits, and the cost if requests are
/// billed.
async fn workers(session: &Session, prices: Prices, queues: &[QueueOverview]) -> Vec<Check> {
    let found = session.admin.all_workers().await;
    let cost = found.as_deref().map(Cost::of).ok().filter(|_| session.is_billed);
    let unserved = |queue: &&QueueOverview| found.as_deref().is_ok_and(|workers| queue.is_unserved(workers));
    let unserved = queues.iter().filter(unserved).map(|queue| {
        let waiting = waiting(queue, queue.job_counts(found.as_deref().ok()));
        let detail = format!("{waiting} waiting, and no worker that writes records serves the queue");
        Check::new("unserved", Some(&queue.name), Verdict::Warning, detail)
    });
    let workers = found.as_deref().unwrap_or_default();
    let open = queues.iter().filter_map(|queue| {
        let open = queue.open_circuits(workers)?;
        // No job waits for the circuit of an empty queue.
        let (verdict, detail) = if queue.is_empty() {
            (Verdict::Ok, open)
        } else {
            (Verdict::Warning, format!("{open}: every job that ran there failed"))
        };
        Some(Check::new("circuit", Some(&queue.name), verdict, detail))
    });
    let queue_results: Vec<_> = unserved.chain(open).collect();
    let present = Check::from_result("workers", None, found, |workers| {
        let stale = workers.iter().filter(|worker| worker.stale).count();
        let late = workers.iter().filter(|worker| worker.is_late() && !worker.stale).count();
        let late = if late > 0 { format!(" ({late} of them with a late record)") } else { String::new() };
        let detail = format!("{} present{late}, {stale} stale", workers.len() - stale);
        (if stale > 0 { Verdict::Warning } else { Verdict::Ok }, detail)
    });
    let cost = cost.map(|cost| Check::new("cost", None, Verdict::Ok, cost.text(prices)));
    std::iter::once(present).chain(queue_results).chain(cost).collect()
}

/// Compares the clock of this machine with the storage's clock, by which delays and leases count.
async fn clock(session: &Session) -> Check {
    let measured = match session.admin.clock_skew().await {
        Err(error) if error.kind() == ErrorKind::Forbidden => {
            let detail = "not measured: the access of this context does not include `inspect`";
            return Check::new("clock", None, Verdict::Unknown, detail);
        }
        measured => measured,
    };
    Check::from_result("clock", None, measured, |skew| {
        let (by, uncertain) = (skew.by.as_secs_f64(), skew.uncertain.as_secs_f64());
        if !skew.is_certain() {
            return (Verdict::Ok, format!("this machine and the storage agree within {uncertain:.1} s"));
        }
        let side = if skew.ahead { "ahead of" } else { "behind" };
        let detail = format!(
            "this machine is {by:.1} s {side} the storage (± {uncertain:.1} s); set its clock by NTP"
        );
        (Verdict::Warning, detail)
    })
}

async fn orphans(session: &Session) -> Check {
    let swept = session.admin.sweep(SweepOptions::new().dry_run(true)).await;
    Check::from_result("orphans", None, swept, |report| match report.removed {
        0 => (Verdict::Ok, format!("none among {} blobs", report.seen)),
        found => {
            let command = session.command(&["sweep"]);
            let detail =
                format!("{found} of {} blobs ({} bytes); {command} removes them", report.seen, report.bytes);
            (Verdict::Warning, detail)
        }
    })
}

fn overview(check: &Check) -> Vec<String> {
    let verdict = match check.verdict {
        Verdict::Ok => "ok",
        Verdict::Unknown => "unknown",
        Verdict::Warning => "warning",
        Verdict::Failed => "FAILED",
    };
    vec![
        check.check.to_owned(),
        cell(check.subject.as_deref().unwrap_or("-")),
        verdict.to_owned(),
        // Not cut, because the text says how to solve the problem.
        crate::text::clean(&check.detail),
    ]
}
