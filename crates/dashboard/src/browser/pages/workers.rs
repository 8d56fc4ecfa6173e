//! The workers: their jobs, start times and progress.

use askama::Template;
use jobqueue_admin::{Counters, WorkerOverview};

use super::rows::Run;
use super::{Answer, Layout, PageError};
use crate::browser::app::AuthorizedRequest;
use crate::browser::fields::Fields;
use crate::browser::text::{When, age, amount, line};

/// The most running jobs of a worker that the page shows.
const SHOWN: usize = 100;

#[derive(Template)]
#[template(path = "workers.html")]
struct Workers {
    layout: Layout,
    workers: Vec<Worker>,
    gone: Vec<Worker>,
}

struct Worker {
    name: String,
    place: String,
    version: String,
    started: When,
    seen: String,
    draining: bool,
    slots: u32,
    running: u64,
    more: u64,
    queues: Vec<(String, bool)>,
    runs: Vec<Run>,
    counters: Vec<Count>,
}

struct Count {
    queue: String,
    kind: String,
    completed: String,
    retried: String,
    dead: String,
    mean: String,
}

pub(crate) async fn show(request: AuthorizedRequest, _: Fields) -> Result<Answer, PageError> {
    let look = request.app.poller.latest().await?;
    let page = Workers {
        layout: Layout::new(&request, "workers", "Workers").with_look(&look).live(&request, &look, 0),
        workers: look.present().map(|worker| view(&request, worker)).collect(),
        gone: look
            .workers()
            .iter()
            .filter(|worker| worker.stale)
            .map(|worker| view(&request, worker))
            .collect(),
    };
    Ok(Answer::Page(page.render()?))
}

fn view(request: &AuthorizedRequest, worker: &WorkerOverview) -> Worker {
    let record = &worker.record;
    let seen = std::time::Duration::try_from_secs_f64(worker.age_seconds).unwrap_or_default();
    Worker {
        name: line(&record.name),
        place: format!("{}, process {}", line(&record.host), record.pid),
        version: line(&record.version),
        started: When::read(&record.started),
        seen: age(seen),
        draining: record.draining,
        slots: record.slots,
        running: record.running_total,
        more: record.running_total.saturating_sub(record.running.len().min(SHOWN) as u64),
        queues: record.queues.iter().map(|queue| (line(&queue.name), queue.circuit_open)).collect(),
        runs: record.running.iter().take(SHOWN).map(|job| Run::new(request, worker, job)).collect(),
        counters: record.counters.iter().map(count).collect(),
    }
}

fn count(counters: &Counters) -> Count {
    let runs: u64 = counters.run_times.iter().sum();
    let mean = match u32::try_from(runs) {
        Ok(runs) if runs > 0 => format!("{:.3} s", counters.run_seconds / f64::from(runs)),
        _ => "-".to_owned(),
    };
    Count {
        queue: line(&counters.queue),
        kind: line(&counters.kind),
        completed: amount(counters.completed),
        retried: amount(counters.retried),
        dead: amount(counters.dead_lettered),
        mean,
    }
}
