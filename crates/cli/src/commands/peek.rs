//! `peek`: lists the next jobs of a queue, or its jobs in one state.

use std::num::NonZeroUsize;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use jobqueue_admin::{JobFilter, JobState, MAX_INSPECTED, RawJob};
use tokio_util::sync::CancellationToken;

use crate::args::{Given, Global};
use crate::confirm;
use crate::exit::{Failure, or_stop};
use crate::output::{Column, first_failure, rows, say};
use crate::session::{Need, Session};
use crate::text::{argument, cell, last, optional};

#[derive(Args)]
pub(crate) struct PeekArguments {
    /// The name of the queue
    queue: String,
    /// Receives all available messages, lists them and puts them back; they are invisible to workers while it
    /// runs
    #[arg(long)]
    deep: bool,
    /// The maximum number of jobs to list [default: 1000, and 32 without --deep and --state]; with --key,
    /// --kind or --text up to 1,000 more, because the page in which the limit is reached is listed to its end
    #[arg(long, value_name = "COUNT", default_value = "1000", hide_default_value = true)]
    limit: NonZeroUsize,
    /// Lists the jobs of this state, on storages that show all jobs: SQLite, PostgreSQL and Service Bus, where
    /// the running ones are among the waiting ones
    #[arg(long, value_enum, conflicts_with = "deep")]
    state: Option<State>,
    #[command(flatten)]
    selection: StateFilter,
}

#[derive(Args)]
struct StateFilter {
    /// Lists only jobs with this key
    #[arg(long, requires = "state", value_parser = NonEmptyStringValueParser::new())]
    key: Option<String>,
    /// Lists only jobs of this kind
    #[arg(long, requires = "state", value_parser = NonEmptyStringValueParser::new())]
    kind: Option<String>,
    /// Lists only jobs whose last error contains this text
    #[arg(long, requires = "state", value_parser = NonEmptyStringValueParser::new())]
    text: Option<String>,
    /// Continues where an earlier list ended
    #[arg(long, value_name = "MARK", requires = "state")]
    from: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum State {
    /// A worker can receive it, or could if it were the first of its key.
    Waiting,
    /// It was sent with a delay and never received.
    Delayed,
    /// It waits between two attempts, or was put back for another reason.
    BackingOff,
    /// A worker holds its lease.
    Running,
}

impl From<State> for JobState {
    fn from(state: State) -> Self {
        match state {
            State::Waiting => Self::Waiting,
            State::Delayed => Self::Delayed,
            State::BackingOff => Self::BackingOff,
            State::Running => Self::Running,
        }
    }
}

impl StateFilter {
    fn filter(&self, limit: usize) -> JobFilter {
        JobFilter::new()
            .limit(limit)
            .from(self.from.clone())
            .given(self.key.as_ref(), JobFilter::key)
            .given(self.kind.as_ref(), JobFilter::kind)
            .given(self.text.as_ref(), JobFilter::error)
    }
}

/// The end of the question before a deep peek, for a storage that shows all jobs. Where such a storage keeps
/// the order, only the first in-order job of each key can be received.
const STATE_HINT: &str = " `peek --state waiting` shows all jobs without receiving them, including jobs that \
                          wait for another job of their key.";

pub(crate) async fn run(
    global: &Global,
    arguments: PeekArguments,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    if let Some(state) = arguments.state {
        return list(global, &arguments, state, stop).await;
    }
    let PeekArguments { queue, deep, limit, .. } = arguments;
    let limit = limit.get();
    let mut jobs = if deep && limit > MAX_INSPECTED {
        return Err(Failure::Usage(format!(
            "`peek --deep` holds all of its messages at once: at most {MAX_INSPECTED}"
        )));
    } else if deep {
        let session = Session::open(global, Need::Inspect).await?;
        let hint = if session.admin.shows_all_jobs() { STATE_HINT } else { "" };
        let question = format!(
            "`peek --deep` receives up to {limit} messages of `{queue}` and puts them back: workers do not \
             see them while it runs, and their dequeue counts rise by one (their attempts do not).{hint}"
        );
        confirm::typed(global.yes, &question, "yes", stop).await?;
        let jobs = session.admin.stop_when(stop.clone()).inspect(&queue, limit).await?;
        if stop.is_cancelled() {
            let text = format!(
                "interrupted after {} messages; all are back in the queue, or will be when their leases end",
                jobs.len()
            );
            return Err(Failure::Interrupted(text));
        }
        if jobs.len() < limit {
            let length = session.admin.queue(&queue).await.ok().and_then(|queue| queue.length);
            if let Some(text) = unreceived(length, jobs.len()) {
                say(&text);
            }
        }
        jobs
    } else {
        let session = Session::open(global, Need::Read).await?;
        or_stop(async { Ok(session.admin.peek(&queue).await?) }, stop, "interrupted").await?
    };
    jobs.truncate(limit);
    global.output.list(&jobs, "visible jobs", || rows(COLUMNS, &jobs))
}

/// Lists the jobs of a state.
async fn list(
    global: &Global,
    arguments: &PeekArguments,
    state: State,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let (queue, limit) = (&arguments.queue, arguments.limit.get());
    let filter = arguments.selection.filter(limit);
    let session = Session::open(global, Need::Read).await?;
    let search = async { Ok(session.admin.jobs(queue, state.into(), &filter).await?) };
    let page = or_stop(search, stop, "interrupted").await?;
    let what = if page.next.is_some() { "jobs so far" } else { "jobs" };
    let printed = global.output.page(&page, &page.jobs, what, || rows(COLUMNS, &page.jobs));
    if page.partial {
        say(
            "the queue may have jobs that are not shown: it may be partitioned, or a part of it could not be read",
        );
    }
    let Some(next) = &page.next else { return printed };
    say(&format!("there may be more: add --from {}", argument(next)));
    if page.jobs.len() >= limit {
        return printed;
    }
    // A search ends after 100,000 messages, on Service Bus after some seconds, even without a result.
    first_failure(Err(Failure::Failed("the search did not reach all jobs".to_owned())), printed)
}

/// Returns a message if `--deep` received fewer messages than the length of the queue, or if that is unknown.
fn unreceived(length: Option<u64>, received: usize) -> Option<String> {
    match length {
        Some(length) if length <= received as u64 => None,
        Some(length) => Some(format!(
            "{received} of about {length} messages could be received: the others are delayed, leased, behind \
             the first job of their key, or were sent in the meantime"
        )),
        None => Some(format!(
            "{received} messages were received; the queue may have more: its length is not known"
        )),
    }
}

const COLUMNS: &[Column<RawJob>] = &[
    ("ID", |job| cell(&job.id)),
    ("KIND", |job| cell(&job.kind)),
    ("KEY", |job| optional(job.key.as_deref())),
    ("#ATTEMPTS", |job| job.attempts.to_string()),
    ("#RECEIVED", |job| job.dequeue_count.to_string()),
    ("DUE", |job| optional(job.due.as_deref())),
    ("SENT", |job| optional(job.sent.as_deref().or(job.inserted.as_deref()))),
    ("#BYTES", |job| job.payload.bytes().to_string()),
    ("LAST ERROR", |job| last(job.problem.as_deref().or(job.last_error.as_deref()))),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The length is unknown, for example, for a partitioned Service Bus queue without the claim *Manage*.
    #[test]
    fn deep_peek_at_a_queue_of_unknown_length_does_not_claim_to_be_complete() {
        assert_eq!(unreceived(Some(2), 2), None);
        assert!(unreceived(Some(3), 2).unwrap().starts_with("2 of about 3 messages"));
        assert!(unreceived(None, 2).unwrap().contains("its length is not known"));
    }
}
