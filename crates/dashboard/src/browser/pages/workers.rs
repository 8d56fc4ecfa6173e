//! The page of workers: their jobs, start times and progress.

use askama::Template;
use jobqueue_admin::{Counters, WorkerOverview};

use super::rows::Run;
use super::{Answer, Layout, PageError};
use crate::browser::app::AuthorizedRequest;
use crate::browser::fields::Fields;
use crate::browser::filters;

/// The maximum number of running jobs per worker, and of gone workers, on the page.
const MAX_SHOWN: usize = 100;

#[derive(Template)]
#[template(path = "workers.html")]
struct Workers<'a> {
    layout: Layout,
    /// The present workers, each with the rows of its jobs.
    workers: Vec<(&'a WorkerOverview, Vec<Run>)>,
    gone: Vec<&'a WorkerOverview>,
    more_gone: usize,
}

pub(crate) async fn show(request: AuthorizedRequest, _: Fields) -> Result<Answer, PageError> {
    let look = request.app.looks.latest().await?;
    let mut workers = Vec::new();
    for worker in look.present() {
        let runs = worker.record.running.iter().take(MAX_SHOWN).map(|job| Run::new(&request, worker, job));
        workers.push((worker, runs.collect()));
    }
    let mut gone: Vec<_> = look.workers().iter().filter(|worker| worker.stale).collect();
    gone.sort_by(|left, right| left.age_seconds.total_cmp(&right.age_seconds));
    let more_gone = gone.len().saturating_sub(MAX_SHOWN);
    gone.truncate(MAX_SHOWN);
    let page = Workers {
        layout: Layout::new(&request, "workers", "Workers").with_look(&look).live(&request, &look),
        workers,
        gone,
        more_gone,
    };
    Ok(Answer::Page(page.render()?))
}

fn place(worker: &WorkerOverview) -> String {
    format!("{}, process {}", worker.record.host, worker.record.pid)
}

/// Returns the mean run time since the worker's start.
fn mean(counters: &Counters) -> String {
    match u32::try_from(counters.run_times.iter().sum::<u64>()) {
        Ok(runs) if runs > 0 => format!("{:.3} s", counters.run_seconds / f64::from(runs)),
        _ => "-".to_owned(),
    }
}
