//! `history`: searches ended jobs in the journal of the workers.

use std::time::{Duration, SystemTime};

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use jobqueue_admin::{HistoryFilter, HistoryRecord};

use crate::args::{Given, Global};
use crate::exit::Failure;
use crate::output::{Column, rows, say};
use crate::session::{Need, Session};
use crate::text::{cell, duration, last, moment, optional};

#[derive(Args)]
pub(crate) struct HistoryArguments {
    /// Only jobs of this queue
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    queue: Option<String>,
    /// Only jobs with this id
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    id: Option<String>,
    /// Only jobs with this key
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    key: Option<String>,
    /// Only jobs of this kind
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    kind: Option<String>,
    /// Only jobs that ended in this way: a failed attempt with a retry is no end, and is not in the journal
    #[arg(long, value_parser = HistoryFilter::OUTCOMES)]
    outcome: Option<String>,
    /// Only jobs whose error contains this text
    #[arg(long, visible_alias = "text", value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    error: Option<String>,
    /// Only jobs that ended less than this long ago
    #[arg(long, value_name = "TIME", value_parser = duration)]
    younger_than: Option<Duration>,
    /// Only jobs that ended at least this long ago
    #[arg(long, value_name = "TIME", value_parser = duration)]
    older_than: Option<Duration>,
    /// Only jobs that ended at this time or later, in UTC unless it has an offset, such as '2026-11-22 15:00'
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<SystemTime>,
    /// Only jobs that ended at this time or earlier, also to continue a search
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<SystemTime>,
    /// The maximum number of jobs to list, newest first
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    limit: usize,
}

pub(crate) async fn run(global: &Global, arguments: HistoryArguments) -> Result<(), Failure> {
    let session = Session::open(global, Need::Read).await?;
    let page = session.admin.history(&filter(&arguments)).await?;
    let what = "matching jobs in the journal of ended jobs; only workers with `WorkerBuilder::history` write \
                it, within 15 seconds of the end of a job";
    let printed = global.output.page(&page, &page.jobs, what, || rows(COLUMNS, &page.jobs));
    if let Some(time) = &page.searched_to {
        say(&format!("searched all jobs that ended after {time}; add --until {time} for more"));
    }
    match &arguments.id {
        Some(id) if page.jobs.is_empty() && page.complete => {
            Err(Failure::NothingMatched(format!("the journal has no job `{id}` that matches the filter")))
        }
        _ => printed,
    }
}

fn filter(arguments: &HistoryArguments) -> HistoryFilter {
    HistoryFilter::new()
        .limit(arguments.limit)
        .given(arguments.queue.as_ref(), HistoryFilter::queue)
        .given(arguments.id.as_ref(), HistoryFilter::id)
        .given(arguments.key.as_ref(), HistoryFilter::key)
        .given(arguments.kind.as_ref(), HistoryFilter::kind)
        .given(arguments.outcome.as_ref(), HistoryFilter::outcome)
        .given(arguments.error.as_ref(), HistoryFilter::error)
        .given(arguments.younger_than, HistoryFilter::younger_than)
        .given(arguments.older_than, HistoryFilter::older_than)
        .given(arguments.since, HistoryFilter::since)
        .given(arguments.until, HistoryFilter::until)
}

const COLUMNS: &[Column<HistoryRecord>] = &[
    ("ENDED", |job| cell(&job.ended)),
    ("QUEUE", |job| cell(&job.queue)),
    ("ID", |job| cell(&job.id)),
    ("KIND", |job| cell(&job.kind)),
    ("KEY", |job| optional(job.key.as_deref())),
    ("OUTCOME", |job| cell(job.reason.as_deref().unwrap_or(&job.outcome))),
    ("#ATTEMPT", |job| job.attempt.to_string()),
    ("#SECONDS", |job| format!("{:.3}", job.run_seconds)),
    ("ERROR", |job| last(job.error.as_deref())),
];
