//! `run-now`: makes a job due now that is delayed or backing off.

use tokio_util::sync::CancellationToken;

use crate::args::{Global, JobArguments};
use crate::confirm;
use crate::exit::Failure;
use crate::session::Need;

pub(crate) async fn run(
    global: &Global,
    arguments: JobArguments,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let job = arguments.reference();
    let change = format!("run the job `{}` of `{}` now", job.id, job.queue);
    let session = confirm::change(global, Need::Change, &change, stop).await?;
    if let Some(job) = session.admin.run_now(&job).await? {
        return global.output.change(&job, || "the job is due now".to_owned());
    }
    let command = session.job_command(&["explain"], &job);
    Err(Failure::NothingMatched(format!("no such job is delayed; {command} shows its state")))
}
