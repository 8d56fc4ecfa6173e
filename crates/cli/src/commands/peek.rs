//! `peek`: the next jobs of a queue, or those of one state.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use comfy_table::Table;
use jobqueue_admin::{JobFilter, JobState, MAX_INSPECTED, RawJob};
use tokio_util::sync::CancellationToken;

use crate::args::{Given, Global};
use crate::confirm;
use crate::exit::{Failure, or_stop};
use crate::output::{ended, say, table};
use crate::session::{Need, Session};
use crate::text::{cell, optional};

#[derive(Args)]
pub(crate) struct PeekArguments {
    /// The name of the queue
    queue: String,
    /// Lists more than the first 32 messages by receiving them and putting them back; meanwhile they are invisible to workers
    #[arg(long)]
    deep: bool,
    /// The maximum number of jobs to list [default: 1000, and 32 without --deep and --state]
    #[arg(long, value_name = "COUNT", default_value_t = 1_000)]
    limit: usize,
    /// Lists the jobs of this state, on storages that show all jobs: SQLite and PostgreSQL do
    #[arg(long, value_enum, conflicts_with = "deep")]
    state: Option<State>,
    #[command(flatten)]
    selection: Selection,
}

#[derive(Args)]
struct Selection {
    /// Lists only jobs with this key
    #[arg(long, requires = "state")]
    key: Option<String>,
    /// Lists only jobs of this kind
    #[arg(long, requires = "state")]
    kind: Option<String>,
    /// Lists only jobs whose last error contains this text
    #[arg(long, requires = "state", value_parser = NonEmptyStringValueParser::new())]
    text: Option<String>,
    /// Goes on where an earlier list ended
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

impl Selection {
    fn filter(&self, limit: usize) -> JobFilter {
        JobFilter::new()
            .limit(limit)
            .from(self.from.clone())
            .given(self.key.as_ref(), JobFilter::key)
            .given(self.kind.as_ref(), JobFilter::kind)
            .given(self.text.as_ref(), JobFilter::error)
    }
}

pub(crate) async fn run(
    global: &Global,
    arguments: PeekArguments,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let PeekArguments { queue, deep, limit, state, selection } = arguments;
    let mut jobs = if let Some(state) = state {
        let session = Session::open(global, Need::Read).await?;
        let filter = selection.filter(limit);
        let search = async { Ok(session.admin.jobs(&queue, state.into(), &filter).await?) };
        let page = or_stop(search, stop, "interrupted").await?;
        let what = if page.next.is_some() { "jobs so far" } else { "jobs" };
        let printed = global.output.page(&page, &page.jobs, what, || overview(&page.jobs));
        let Some(next) = &page.next else { return printed };
        say(&format!("there may be more: add --from '{next}'"));
        if page.jobs.len() >= limit {
            return printed;
        }
        // A search ends after 100,000 messages, also without a result.
        return ended(Err(Failure::Failed("the search has not met all jobs".to_owned())), printed);
    } else if deep && limit > MAX_INSPECTED {
        return Err(Failure::Usage(format!(
            "a deep look holds all of its messages at once: at most {MAX_INSPECTED}"
        )));
    } else if deep {
        let session = Session::open(global, Need::Inspect).await?;
        let question = format!(
            "A deep look receives up to {limit} messages of `{queue}` and puts them back: workers do not see them meanwhile, \
             and their dequeue count rises by one (not their attempts)."
        );
        confirm::typed(global.yes, &question, "yes", stop).await?;
        let jobs = session.admin.stop_when(stop.clone()).inspect(&queue, limit).await?;
        if stop.is_cancelled() {
            let text = format!("interrupted after {} messages; all are back in the queue", jobs.len());
            return Err(Failure::Interrupted(text));
        }
        jobs
    } else {
        let session = Session::open(global, Need::Read).await?;
        or_stop(async { Ok(session.admin.peek(&queue).await?) }, stop, "interrupted").await?
    };
    jobs.truncate(limit);
    global.output.list(&jobs, "visible jobs", || overview(&jobs))
}

fn overview(jobs: &[RawJob]) -> Table {
    let columns = ["ID", "KIND", "KEY", "#ATTEMPTS", "#RECEIVED", "DUE", "SENT", "#BYTES", "LAST ERROR"];
    let mut rows = table(&columns);
    for job in jobs {
        rows.add_row([
            cell(&job.id),
            cell(&job.kind),
            optional(job.key.as_deref()),
            job.attempts.to_string(),
            job.dequeue_count.to_string(),
            optional(job.due.as_deref()),
            optional(job.sent.as_deref().or(job.inserted.as_deref())),
            job.payload.bytes().to_string(),
            optional(job.problem.as_deref().or(job.last_error.as_deref())),
        ]);
    }
    rows
}
