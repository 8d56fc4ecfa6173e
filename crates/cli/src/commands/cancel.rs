//! `cancel`: a job that waits or runs, by its id.

use clap::Args;
use jobqueue_admin::Cancellation;
use tokio_util::sync::CancellationToken;

use crate::args::{Global, JobArguments};
use crate::confirm;
use crate::exit::Failure;
use crate::session::{Need, Session};
use crate::text::clean;

#[derive(Args)]
pub(crate) struct CancelArguments {
    #[command(flatten)]
    job: JobArguments,
    /// Only shows the result of an earlier request
    #[arg(long)]
    status: bool,
}

pub(crate) async fn run(
    global: &Global,
    arguments: CancelArguments,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let job = arguments.job.reference();
    if arguments.status {
        let session = Session::open(global, Need::Read).await?;
        let cancellation = session.admin.cancellation(&job).await?;
        return global.output.value(&cancellation, || text(&cancellation));
    }
    let change = format!("cancel the job `{}` of `{}`", job.id, job.queue);
    let session = confirm::change(global, Need::Change, &change, stop).await?;
    // A request for a queue that is mistyped would stand for 30 days.
    session.admin.queue(&job.queue).await?;
    let report = session.admin.cancel(&job).await?;
    global.output.value(&report, || match report.workers {
        0 => "requested; no worker serves the queue, so the next worker to start handles the request"
            .to_owned(),
        workers => format!("requested from {workers} workers. Add --status to see the result"),
    })
}

fn text(cancellation: &Cancellation) -> String {
    match cancellation {
        Cancellation::None => "not requested, or the request is older than 30 days".to_owned(),
        Cancellation::Requested { by, at } => {
            format!("requested by {} at {}; no worker has answered yet", clean(by), clean(at))
        }
        Cancellation::Cancelled => "cancelled: the job is a dead letter".to_owned(),
        Cancellation::Completed => "the job completed before it could be cancelled".to_owned(),
        Cancellation::DeadLettered => "the job is a dead letter for another reason".to_owned(),
        other => format!("{other:?}"),
    }
}
