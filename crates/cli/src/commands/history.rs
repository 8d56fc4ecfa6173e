//! `history`: jobs that have ended, as workers keep a journal of them.

use std::time::{Duration, SystemTime};

use clap::Args;
use comfy_table::Table;
use jobqueue_admin::{HistoryFilter, HistoryRecord};

use crate::args::Global;
use crate::exit::Failure;
use crate::output::{Output, say, table};
use crate::session::{Need, Session};
use crate::text::{cell, duration, moment, optional};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Only jobs of this queue
    #[arg(long)]
    queue: Option<String>,
    /// Only jobs with this id
    #[arg(long)]
    id: Option<String>,
    /// Only jobs with this key
    #[arg(long)]
    key: Option<String>,
    /// Only jobs of this kind
    #[arg(long)]
    kind: Option<String>,
    /// Only jobs with this outcome: completed, completed_uncertain or dead_lettered
    #[arg(long)]
    outcome: Option<String>,
    /// Only jobs whose error contains this text
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Only jobs that ended less than this long ago
    #[arg(long, value_name = "TIME", value_parser = duration)]
    younger_than: Option<Duration>,
    /// Only jobs that ended at least this long ago
    #[arg(long, value_name = "TIME", value_parser = duration)]
    older_than: Option<Duration>,
    /// Only jobs that ended at this time or earlier, to continue a search
    #[arg(long, value_name = "RFC 3339", value_parser = moment, conflicts_with = "older_than")]
    until: Option<SystemTime>,
    /// The maximum number of jobs to list, newest first
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    limit: usize,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> Result<(), Failure> {
    let session = Session::open(global, Need::Read).await?;
    let page = session.admin.history(&filter(&arguments)).await?;
    match global.output {
        Output::Json => global.output.value(&page, String::new)?,
        _ => global.output.list(&page.jobs, "ended jobs", || overview(&page.jobs))?,
    }
    if let Some(time) = &page.searched_to {
        say(&format!("searched all jobs that ended after {time}; add --until {time} for more"));
    }
    Ok(())
}

fn filter(arguments: &Arguments) -> HistoryFilter {
    let now = SystemTime::now();
    let mut filter = HistoryFilter::new().limit(arguments.limit);
    if let Some(queue) = &arguments.queue {
        filter = filter.queue(queue);
    }
    if let Some(id) = &arguments.id {
        filter = filter.id(id);
    }
    if let Some(key) = &arguments.key {
        filter = filter.key(key);
    }
    if let Some(kind) = &arguments.kind {
        filter = filter.kind(kind);
    }
    if let Some(outcome) = &arguments.outcome {
        filter = filter.outcome(outcome);
    }
    if let Some(text) = &arguments.error {
        filter = filter.error(text);
    }
    if let Some(since) = arguments.younger_than.and_then(|age| now.checked_sub(age)) {
        filter = filter.since(since);
    }
    if let Some(until) = arguments.older_than.and_then(|age| now.checked_sub(age)) {
        filter = filter.until(until);
    }
    if let Some(until) = arguments.until {
        filter = filter.until(until);
    }
    filter
}

fn overview(jobs: &[HistoryRecord]) -> Table {
    let mut rows = table(&["ENDED", "QUEUE", "ID", "KIND", "OUTCOME", "#ATTEMPT", "#SECONDS", "ERROR"]);
    for job in jobs {
        rows.add_row([
            cell(&job.ended),
            cell(&job.queue),
            cell(&job.id),
            cell(&job.kind),
            cell(job.reason.as_deref().unwrap_or(&job.outcome)),
            job.attempt.to_string(),
            format!("{:.3}", job.run_seconds),
            optional(job.error.as_deref()),
        ]);
    }
    rows
}
