//! `cancel`: cancels waiting and running jobs, selected by ids, by a filter or by a plan.

use std::path::PathBuf;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use futures_util::{StreamExt, TryStreamExt, stream};
use jobqueue::ErrorKind;
use jobqueue_admin::{
    Admin, CancelPlan, CancelReport, Cancellation, Explanation, IdentifiedJob, JobFilter, JobPlace,
    JobReference,
};
use tokio_util::sync::CancellationToken;

use super::dead_changes::{PlanFile, named_jobs, read_plan};
use crate::args::{Given, Global};
use crate::confirm;
use crate::exit::{Failure, or_stop};
use crate::last_line;
use crate::output::{first_failure, say};
use crate::session::{Need, Session};
use crate::text::{clean, things};

/// The number of jobs that are explained concurrently. Each costs about twenty requests.
const CONCURRENT_CHECKS: usize = 8;

#[derive(Args)]
pub(crate) struct CancelArguments {
    /// The name of the queue
    queue: String,
    /// The ids of the jobs
    ids: Vec<String>,
    /// Cancels jobs of this sender; with ids, the sender of the jobs, if several senders use the same id
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    source: Option<String>,
    /// Cancels jobs with this key
    #[arg(long, conflicts_with = "ids", value_parser = NonEmptyStringValueParser::new())]
    key: Option<String>,
    /// Cancels jobs of this kind
    #[arg(long, conflicts_with = "ids", value_parser = NonEmptyStringValueParser::new())]
    kind: Option<String>,
    /// Cancels the children of this batch
    #[arg(long, value_name = "ID", conflicts_with = "ids", value_parser = NonEmptyStringValueParser::new())]
    batch: Option<String>,
    /// With --dry-run, writes the jobs to this file, which must not exist; otherwise, cancels exactly the
    /// jobs in this file
    #[arg(long, value_name = "FILE", conflicts_with = "ids")]
    plan: Option<PathBuf>,
    /// Executes the plan even if it names another storage, because one storage can have several names
    #[arg(long, requires = "plan")]
    any_storage: bool,
    /// Only lists the jobs
    #[arg(long)]
    dry_run: bool,
    /// Only shows the result of an earlier request
    #[arg(long, requires = "ids", conflicts_with = "dry_run")]
    status: bool,
}

impl CancelArguments {
    fn references(&self) -> Vec<JobReference> {
        let job = |id: &String| {
            JobReference::new(&self.queue, id).given(self.source.as_ref(), JobReference::with_source)
        };
        self.ids.iter().map(job).collect()
    }

    /// Returns the filter, if the arguments have a condition. A sender is a condition unless ids are given.
    fn filter(&self) -> Option<JobFilter> {
        let conditions = [&self.key, &self.kind, &self.batch].into_iter().any(Option::is_some);
        let is_of_sender = self.source.is_some() && self.ids.is_empty();
        (conditions || is_of_sender).then(|| {
            JobFilter::new()
                .given(self.key.as_ref(), JobFilter::key)
                .given(self.kind.as_ref(), JobFilter::kind)
                .given(self.batch.as_ref(), JobFilter::batch)
                .given(self.source.as_ref(), JobFilter::source)
        })
    }
}

pub(crate) async fn run(
    global: &Global,
    arguments: CancelArguments,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    if arguments.status {
        return or_stop(status(global, &arguments.references()), stop, "interrupted").await;
    }
    let prepare = async {
        let session = if arguments.dry_run {
            Session::open(global, Need::Read).await?
        } else {
            let change = format!("cancel jobs of `{}`", arguments.queue);
            confirm::change(global, Need::Change, &change, stop).await?
        };
        let plan_file =
            arguments.plan.as_deref().filter(|_| arguments.dry_run).map(PlanFile::create).transpose()?;
        let planned = plan(&session, &arguments).await?;
        Ok((session, plan_file, planned))
    };
    let prepared = or_stop(prepare, stop, "interrupted; nothing was changed").await?;
    let (session, plan_file, Planned { plan, ended: left_out }) = prepared;
    if !plan.complete {
        say(why_incomplete(&arguments, &session));
    }
    if plan.jobs.is_empty() && plan.complete {
        return Err(Failure::NothingMatched("no job matches".to_owned()));
    }
    if plan.jobs.is_empty() {
        return Err(Failure::Failed("no matching job was found; nothing was changed".to_owned()));
    }
    if arguments.dry_run {
        let written = plan_file.map_or(Ok(()), |file| file.write(&plan));
        let printed = written.and(global.output.value(&plan, || preview(&plan)));
        return first_failure(verdict(plan.complete, left_out, "would be cancelled"), printed);
    }
    let report = request(&session.admin, &plan, stop).await?;
    let printed = global.output.change(&report, || report_text(&session, &report));
    first_failure(verdict(report.complete, left_out, "were cancelled"), printed)
}

/// Requests the cancellation of the jobs, until `stop` fires. The workers are notified of the requests that
/// were made, so the call must not be dropped.
async fn request(
    admin: &Admin,
    plan: &CancelPlan,
    stop: &CancellationToken,
) -> Result<CancelReport, Failure> {
    last_line::set("some cancellations may be requested, of which no worker is notified: repeat the command");
    let made = admin.stop_when(stop.clone()).cancel_all(plan).await;
    made.map_err(|error| match error.kind() {
        ErrorKind::Conflict if stop.is_cancelled() => Failure::Interrupted(format!("{error:?}")),
        _ => error.into(),
    })
}

/// Fails unless the plan has every selected job. A dry run fails too, because scripts continue with its plan.
fn verdict(is_complete: bool, left_out: usize, done: &str) -> Result<(), Failure> {
    match (is_complete, left_out) {
        (true, 0) => Ok(()),
        (true, left_out) => {
            Err(Failure::Failed(format!("already ended, and left out: {}", things(left_out, "job"))))
        }
        (false, _) => Err(Failure::Failed(format!("more jobs may match than {done}"))),
    }
}

async fn status(global: &Global, jobs: &[JobReference]) -> Result<(), Failure> {
    let [job] = jobs else { return Err(Failure::Usage("--status takes one id".to_owned())) };
    let admin = Session::open(global, Need::Read).await?.admin;
    let job = admin.identify(job).await?;
    let answer = admin.cancellation(&job).await?;
    let found = if answer == Cancellation::None { None } else { admin.explain(&job).await.ok() };
    // An explanation without a cancellation shows an earlier life only if it has read the cancellation.
    let has_read =
        |found: &Explanation| found.reasons.iter().all(|reason| reason.code != "cancellation_unread");
    let found = found.filter(has_read);
    let cancellation = found.as_ref().map_or(&answer, |found| &found.cancellation);
    let mut text = answer.to_string();
    if *cancellation == Cancellation::None && answer != Cancellation::None {
        text.push_str(", before it was put back or sent again");
    }
    // No worker answers a request that it reads after the end of the job.
    if matches!(answer, Cancellation::Requested { .. })
        && let Some(found) = found.as_ref().filter(|found| found.has_ended || found.place == JobPlace::Dead)
    {
        let other = if found.has_ended { "" } else { " Another message of it may wait or run." };
        text.push_str(&format!(". {}{other}", found.summary));
    }
    global.output.value(cancellation, || clean(&text))
}

fn report_text(session: &Session, report: &CancelReport) -> String {
    let mut jobs = things(report.jobs.len(), "job");
    if let [JobReference { source: Some(source), .. }] = &report.jobs[..] {
        jobs.push_str(&format!(" of {}", clean(source)));
    }
    match report.workers {
        0 => {
            format!(
                "cancellation requested for {jobs}; no worker with a record serves the queue: the next \
                 worker to start handles it, and a worker without a record runs its jobs to their end"
            )
        }
        workers => {
            let queue = report.jobs.first().map_or("QUEUE", |job| &job.queue);
            let command = match &report.jobs[..] {
                [job] => session.job_command(&["cancel", "--status"], job),
                _ => session.command(&["cancel", "--status", queue, "ID"]),
            };
            let workers = things(workers as usize, "worker");
            format!(
                "cancellation requested for {jobs} from {workers}: workers read the request within 15 \
                 seconds by default, and a paused queue must stay paused until then; {command} shows the \
                 result"
            )
        }
    }
}

/// Returns why a plan may not have all jobs.
fn why_incomplete(arguments: &CancelArguments, session: &Session) -> &'static str {
    let reads_log = session.admin.shows_all_jobs() && !session.admin.shows_running_jobs();
    match (arguments.filter(), session.admin.shows_all_jobs()) {
        (None, _) => "the plan does not name all jobs that matched",
        (Some(_), true) if reads_log => {
            "more jobs may match: some arrived during the search, or there are more than the first 10,000 \
             messages that a plan looks at, or the queue is partitioned"
        }
        (Some(_), true) => {
            "more jobs may match: some arrived during the search, or there are more than a plan holds: \
             100,000, found among the first 100,000 of each state"
        }
        (Some(_), false) => {
            "more jobs may match: this storage shows only its first 32 visible jobs and the jobs in the \
             records of workers; with --batch alone also open children, by the ids that the batch gave them"
        }
    }
}

/// The selected jobs, and the number of named jobs that have already ended.
struct Planned {
    plan: CancelPlan,
    ended: usize,
}

impl From<CancelPlan> for Planned {
    fn from(plan: CancelPlan) -> Self {
        Self { plan, ended: 0 }
    }
}

async fn plan(session: &Session, arguments: &CancelArguments) -> Result<Planned, Failure> {
    let (filter, file) = (arguments.filter(), arguments.plan.as_deref().filter(|_| !arguments.dry_run));
    if let (Some(_), Some(_)) = (&arguments.source, file) {
        return Err(Failure::Usage(
            "a plan names its jobs with their senders: leave --source out".to_owned(),
        ));
    }
    match (filter, file, arguments.ids.is_empty()) {
        (Some(filter), None, true) => Ok(session.admin.plan_cancel(&arguments.queue, &filter).await?.into()),
        (None, Some(file), true) => {
            let mut plan: CancelPlan = read_plan(file)?;
            if arguments.any_storage {
                plan.storage = None;
            }
            match plan.jobs.iter().find(|job| job.queue != arguments.queue) {
                Some(job) => Err(Failure::Usage(format!("the plan is for the queue `{}`", job.queue))),
                None => Ok(plan.into()),
            }
        }
        (None, None, false) => {
            // One search for all jobs. Only jobs that it does not find are then explained one by one.
            let jobs = session.admin.identify_all(&arguments.references()).await?;
            let checks = jobs.iter().map(|found| find_open(session, found));
            let jobs: Vec<_> = stream::iter(checks).buffered(CONCURRENT_CHECKS).try_collect().await?;
            let (open, ended): (Vec<_>, Vec<_>) = jobs.into_iter().partition(Result::is_ok);
            let ended: Vec<String> = ended.into_iter().filter_map(Result::err).collect();
            if open.is_empty() {
                return Err(Failure::NothingMatched(format!("nothing was changed: {}", ended.join("; "))));
            }
            for text in &ended {
                say(&format!("left out: {text}"));
            }
            let plan = CancelPlan::of_jobs(open.into_iter().filter_map(Result::ok));
            Ok(Planned { plan, ended: ended.len() })
        }
        (None, None, true) => Err(Failure::Usage(
            "no jobs are selected: add ids, --key, --kind, --batch, --source or a plan".to_owned(),
        )),
        _ => Err(Failure::Usage("ids, a filter and a plan exclude each other".to_owned())),
    }
}

/// Returns the job with its sender, or a text if the job has ended, because a request to cancel it would
/// stand for 30 days. Fails if the job certainly does not exist.
async fn find_open(
    session: &Session,
    found: &IdentifiedJob,
) -> Result<Result<JobReference, String>, Failure> {
    if found.is_open && found.job.source.is_some() {
        return Ok(Ok(found.job.clone()));
    }
    let found = session.admin.explain(&found.job).await?;
    let job = found.reference();
    if found.has_ended {
        return Ok(Err(format!("`{}`: {}", job.id, found.summary)));
    }
    let of_any = if job.source.is_none() { ", for the job of any sender" } else { "" };
    if !of_any.is_empty() || matches!(found.place, JobPlace::Unseen | JobPlace::Dead | JobPlace::Ended) {
        say(&format!("`{}`: {} The request stands for 30 days{of_any}", job.id, found.summary));
    }
    Ok(Ok(job))
}

fn preview(plan: &CancelPlan) -> String {
    format!("{} would be cancelled\n{}", things(plan.jobs.len(), "job"), named_jobs(&plan.jobs))
}

#[cfg(test)]
mod tests {
    use jobqueue::Storage;
    use jobqueue_admin::AccessLevel;

    use super::*;

    // newcomers 30, A3
    #[tokio::test]
    async fn report_says_how_long_a_paused_queue_must_stay_paused() {
        let admin = Admin::builder(Storage::memory()).access(AccessLevel::Operate).build();
        admin.create_queue("mails").await.unwrap();
        let plan = CancelPlan::of_jobs([JobReference::new("mails", "order-17")]);
        let mut report = admin.cancel_all(&plan).await.unwrap();
        report.workers = 2;
        let text = report_text(&Session::for_test(admin), &report);
        assert!(text.contains("from 2 workers: workers read the request within 15 seconds"), "{text}");
        assert!(text.contains("must stay paused until then"), "{text}");
    }

    // round 34, A3: the requests stood, and no worker was notified of them.
    #[tokio::test]
    async fn interrupted_cancellation_says_how_many_were_requested() {
        let admin = Admin::builder(Storage::memory()).access(AccessLevel::Operate).build();
        admin.create_queue("mails").await.unwrap();
        let plan = CancelPlan::of_jobs(["1", "2"].map(|id| JobReference::new("mails", id)));
        let stop = CancellationToken::new();
        stop.cancel();
        let ended = request(&admin, &plan, &stop).await;
        let Err(Failure::Interrupted(text)) = &ended else { panic!("{ended:?}") };
        assert!(text.contains("0 of 2 jobs: their cancellation was requested"), "{text}");
    }
}
