//! `peek`: the next jobs of a queue.

use clap::Args;
use comfy_table::Table;
use jobqueue::admin::RawJob;
use tokio_util::sync::CancellationToken;

use crate::args::Global;
use crate::confirm;
use crate::exit::Failure;
use crate::output::table;
use crate::session::{Need, Session};
use crate::text::{cell, optional};

#[derive(Args)]
pub(crate) struct Arguments {
    /// The name of the queue
    queue: String,
    /// Lists more than the first 32 messages by receiving them and putting them back; meanwhile they are invisible to workers
    #[arg(long)]
    deep: bool,
    /// The maximum number of jobs to list, with --deep
    #[arg(long, value_name = "COUNT", default_value_t = 1_000, requires = "deep")]
    limit: usize,
}

pub(crate) async fn run(
    global: &Global,
    arguments: Arguments,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let Arguments { queue, deep, limit } = arguments;
    let jobs = if deep {
        let session = Session::open(global, Need::Inspect).await?;
        let question = format!(
            "A deep look receives up to {limit} messages of `{queue}` and puts them back: workers do not see them meanwhile, \
             and their dequeue count rises by one (not their attempts)."
        );
        confirm::typed(global.yes, &question, "yes", stop).await?;
        session.admin.inspect(&queue, limit).await?
    } else {
        let session = Session::open(global, Need::Read).await?;
        tokio::select! {
            biased;
            jobs = session.admin.peek(&queue) => jobs?,
            () = stop.cancelled() => return Err(Failure::Interrupted("interrupted".to_owned())),
        }
    };
    global.output.list(&jobs, "visible jobs", || overview(&jobs))
}

fn overview(jobs: &[RawJob]) -> Table {
    let mut rows = table(&["ID", "KIND", "KEY", "#ATTEMPTS", "#RECEIVED", "SENT", "#BYTES", "LAST ERROR"]);
    for job in jobs {
        rows.add_row([
            cell(&job.id),
            cell(&job.kind),
            optional(job.key.as_deref()),
            job.attempts.to_string(),
            job.dequeue_count.to_string(),
            optional(job.sent.as_deref().or(job.inserted.as_deref())),
            job.payload.bytes().to_string(),
            optional(job.problem.as_deref().or(job.last_error.as_deref())),
        ]);
    }
    rows
}
