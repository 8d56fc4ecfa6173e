//! `dead redrive` and `dead purge`: many dead letters at once.

use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use jobqueue_admin::{
    Action, Bulk, BulkProgress, BulkReport, DeadLetterFilter, DeadLetterPlan, JobReference,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::NamedTempFile;
use tokio_util::sync::CancellationToken;

use super::queues::known;
use crate::args::{Given, Global};
use crate::confirm;
use crate::exit::Failure;
use crate::filter::Filter;
use crate::last_line;
use crate::output::{self, say};
use crate::session::{Need, Session};
use crate::text::{clean, things};

/// The maximum number of jobs, and of skipped jobs, that a text names.
pub(super) const MAX_NAMED: usize = 10;

#[derive(Args)]
pub(crate) struct BulkArguments {
    /// The name of the queue
    queue: String,
    #[command(flatten)]
    filter: Filter,
    /// Selects all dead letters, without a filter
    #[arg(long)]
    all: bool,
    /// With --dry-run, writes the selected dead letters to this file, which must not exist; otherwise, takes
    /// exactly the dead letters in this file
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Executes the plan even if it names another storage, because one storage can have several names
    #[arg(long, requires = "plan")]
    any_storage: bool,
    /// Takes at most this many dead letters
    #[arg(long, value_name = "COUNT")]
    limit: Option<u64>,
    /// Takes at most this many dead letters per second
    #[arg(long, value_name = "PER_SECOND", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// In a redrive, puts this many back first, waits until they have ended, and stops if any of them dies
    /// again
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "dry_run")]
    canary: Option<u64>,
    /// Only reports the changes; the dead letters are invisible to others while it runs
    #[arg(long)]
    dry_run: bool,
}

pub(crate) async fn run(
    global: &Global,
    arguments: BulkArguments,
    purges: bool,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    if purges && arguments.canary.is_some() {
        let text = "a purge has no canary, because the jobs that it deletes do not run again";
        return Err(Failure::Usage(text.to_owned()));
    }
    let selection = selection(&arguments)?;
    let session = match (arguments.dry_run, purges) {
        (true, _) => Session::open(global, Need::Inspect).await?,
        (false, true) => confirm_purge(global, &arguments.queue, &selection, stop).await?,
        (false, false) => {
            let change = format!("put dead letters of `{}` back", arguments.queue);
            confirm::change(global, Need::Change, &change, stop).await?
        }
    };
    let plan_file =
        arguments.plan.as_deref().filter(|_| arguments.dry_run).map(PlanFile::create).transpose()?;
    let (bar, queue) = (progress_bar(), &arguments.queue);
    let admin = session.admin.stop_when(stop.clone());
    let bulk = if purges { admin.purge(&arguments.queue) } else { admin.redrive(&arguments.queue) };
    let bulk = match selection {
        Selection::Filter(filter) => bulk.filter(filter),
        Selection::Plan(plan) => bulk.plan(plan),
    };
    let bulk = bulk.dry_run(arguments.dry_run);
    let bulk = bulk.given(arguments.limit, Bulk::limit).given(arguments.rate, Bulk::per_second);
    let bulk = bulk.given(arguments.canary, Bulk::canary);
    let verb = match (arguments.dry_run, purges) {
        (true, _) => "looked at, and nothing was changed",
        (false, true) => "deleted, and perhaps a few more",
        (false, false) => "put back, and perhaps a few more",
    };
    last_line::set(format!("0 dead letters {verb}; {}", last_line::HELD));
    let report = bulk.on_progress(progress_listener(bar.clone(), queue, verb)).run().await;
    bar.finish_and_clear();
    let report = report?;
    // An incomplete or empty plan is not written: its file would make a second run of the same command fail.
    let plan = report.plan();
    let planned = plan_file.filter(|_| report.stopped.is_none() && !plan.letters.is_empty());
    let written = planned.map_or(Ok(()), |file| file.write(&plan));
    let printed = if arguments.dry_run {
        global.output.value(&report, || text(&report, purges, arguments.rate))
    } else {
        global.output.change(&report, || text(&report, purges, None))
    };
    output::first_failure(written.and(verdict(&report, purges, arguments.limit, stop)), printed)
}

/// Returns a listener that shows the progress on `bar`. `verb` says what is done with a dead letter.
fn progress_listener(bar: ProgressBar, queue: &str, verb: &'static str) -> impl FnMut(BulkProgress) + Send {
    let mut held_up = None;
    move |progress| {
        let done = things(usize::try_from(progress.done).unwrap_or(usize::MAX), "dead letter");
        last_line::set(format!("{done} {verb}; {}; run the same command again to continue", last_line::HELD));
        if let Some(reason) = progress.held_up.filter(|reason| held_up.as_ref() != Some(reason)) {
            bar.suspend(|| say(&format!("the jobs of the canary are waiting: `{queue}` {reason}")));
            held_up = Some(reason);
        }
        if let Some(total) = progress.total {
            bar.set_length(total);
        }
        bar.set_position(progress.done);
        bar.set_message(if progress.waits { "waiting until these have ended" } else { "" });
    }
}

enum Selection {
    Filter(DeadLetterFilter),
    Plan(DeadLetterPlan),
}

fn selection(arguments: &BulkArguments) -> Result<Selection, Failure> {
    let filter = arguments.filter.selection();
    let plan = arguments.plan.as_deref().filter(|_| !arguments.dry_run);
    match (filter.is_empty(), arguments.all, plan) {
        (true, false, Some(path)) => read_letters(path, arguments.any_storage).map(Selection::Plan),
        (true, true, None) => Ok(Selection::Filter(DeadLetterFilter::all())),
        (false, false, None) => Ok(Selection::Filter(filter)),
        (true, false, None) => Err(Failure::Usage(
            "no dead letters are selected: add a filter such as --kind or --reason, a plan, or --all"
                .to_owned(),
        )),
        _ => Err(Failure::Usage("--all, a filter and a plan exclude each other".to_owned())),
    }
}

/// Reads a plan of dead letters. With `any_storage` the plan fits every storage, whichever it names.
pub(super) fn read_letters(path: &Path, any_storage: bool) -> Result<DeadLetterPlan, Failure> {
    let mut plan: DeadLetterPlan = read_plan(path)?;
    plan.storage = plan.storage.filter(|_| !any_storage);
    Ok(plan)
}

pub(super) fn read_plan<P: DeserializeOwned>(path: &Path) -> Result<P, Failure> {
    let unreadable =
        |error: &dyn Display| Failure::Usage(format!("the plan {} cannot be read: {error}", path.display()));
    let text = std::fs::read(path).map_err(|error| unreadable(&error))?;
    serde_json::from_slice(&text).map_err(|error| unreadable(&error))
}

/// The file into which a dry run writes its plan. The file has a temporary name until it is complete, so that
/// a run that is killed leaves no file of the final name.
pub(super) struct PlanFile<'a> {
    path: &'a Path,
    file: NamedTempFile,
}

impl<'a> PlanFile<'a> {
    /// Creates the temporary file, before a search that may take minutes.
    pub(super) fn create(path: &'a Path) -> Result<Self, Failure> {
        if path.symlink_metadata().is_ok() {
            return Err(unwritable(path, &"it exists"));
        }
        let mut options = tempfile::Builder::new();
        // The plan names people and jobs, so other users of the machine must not read it.
        #[cfg(unix)]
        options.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o640));
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let file = options.prefix(".plan-").tempfile_in(folder.unwrap_or(Path::new(".")));
        Ok(Self { path, file: file.map_err(|error| unwritable(path, &error))? })
    }

    pub(super) fn write<P: Serialize>(mut self, plan: &P) -> Result<(), Failure> {
        let json = output::json(plan, true)?;
        self.file.write_all(format!("{json}\n").as_bytes()).map_err(|error| unwritable(self.path, &error))?;
        // Never replaces a file: another operator would execute a plan with contents that they have not read.
        self.file.persist_noclobber(self.path).map_err(|failed| unwritable(self.path, &failed.error))?;
        Ok(())
    }
}

fn unwritable(path: &Path, error: &dyn Display) -> Failure {
    Failure::Failed(format!("the plan {} cannot be written: {error}", path.display()))
}

/// Opens the storage for a purge, and asks the operator to type the name of the queue.
async fn confirm_purge(
    global: &Global,
    queue: &str,
    selection: &Selection,
    stop: &CancellationToken,
) -> Result<Session, Failure> {
    let session = Session::open(global, Need::Change).await?;
    session.admin.require(Action::Purge, queue)?;
    let what = match selection {
        Selection::Plan(plan) => format!("at most {} dead letters of `{queue}`", plan.letters.len()),
        Selection::Filter(_) => {
            let dead = known(session.admin.queue(queue).await?.dead_letters);
            format!("dead letters of `{queue}`, which has about {dead}")
        }
    };
    let place =
        session.production().map_or_else(String::new, |name| format!(" in the production context `{name}`"));
    let question = format!(
        "The purge permanently deletes {what}{place}. A batch that waits for one of them never continues."
    );
    confirm::typed(global.yes, &question, queue, stop).await?;
    Ok(session)
}

/// Returns the first jobs, one per line, and the number of the others.
pub(super) fn named_jobs(jobs: &[JobReference]) -> String {
    let mut text: String = jobs.iter().take(MAX_NAMED).map(|job| format!("  {}\n", clean(&job.id))).collect();
    if jobs.len() > MAX_NAMED {
        text.push_str(&format!("  and {} more; --output json names all\n", jobs.len() - MAX_NAMED));
    }
    text
}

/// Returns a bar on standard error, hidden unless that is a terminal.
fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    match ProgressStyle::with_template("{wide_bar} {pos}/{len} {per_sec} {eta} {msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn text(report: &BulkReport, purges: bool, rate: Option<u32>) -> String {
    let verb = match (report.dry_run, purges) {
        (true, true) => "would be deleted",
        (true, false) => "would be put back",
        (false, true) => "deleted",
        (false, false) => "put back",
    };
    let rest = report.rest_text(|number| number.to_string());
    let mut text = format!("{} {verb}, {} skipped; {rest}\n", report.count, report.skipped.len());
    if let Some(missing) = report.missing.filter(|missing| *missing > 0) {
        text.push_str(&format!("  {missing} of the plan were not found: they are gone, or held by others\n"));
    }
    if report.copies > 0 {
        let verb = if report.dry_run { "would be deleted" } else { "deleted" };
        let what = if report.copies == 1 { "as a copy" } else { "as copies" };
        text.push_str(&format!("  {} {verb} {what}: their jobs have another dead letter\n", report.copies));
    }
    if report.payloads_left > 0 {
        text.push_str(&format!(
            "  the payload of {} of them stays, because it could not be deleted: `sweep --drained-queues` \
             removes it, while nothing is redriven\n",
            report.payloads_left
        ));
    }
    if purges {
        text.push_str(&batches(report));
    }
    if report.dry_run {
        if let Some(cost) = report.cost_text(purges, rate) {
            text.push_str(&format!("  {cost}\n"));
        }
        text.push_str(&named_jobs(&report.jobs));
    }
    for skipped in report.skipped.iter().take(MAX_NAMED) {
        let moved = match (skipped.maybe_moved, purges) {
            (false, _) => "",
            (true, false) => " (perhaps in both queues)",
            (true, true) => " (perhaps deleted)",
        };
        text.push_str(&format!("  skipped {}: {}{moved}\n", clean(&skipped.id), clean(&skipped.error)));
    }
    text
}

/// Returns a line about the batches that wait for the purged jobs.
fn batches(report: &BulkReport) -> String {
    let verb =
        if report.dry_run { "would never continue: redrive these instead" } else { "never continue now" };
    match report.waited_for {
        Some(0) => String::new(),
        Some(count) => format!("  batches wait for {count} of them, and {verb}\n"),
        None => "  batches may wait for some of them: the batches could not be read\n".to_owned(),
    }
}

fn verdict(
    report: &BulkReport,
    purges: bool,
    limit: Option<u64>,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    if stop.is_cancelled()
        && let Some(cause) = &report.stopped
    {
        let rest = limit.map(|limit| format!(" with --limit {}", limit.saturating_sub(report.count)));
        let text = format!(
            "interrupted after {} dead letters: {cause}; run the same command again{} to continue",
            report.count,
            rest.unwrap_or_default()
        );
        return Err(Failure::Interrupted(text));
    }
    if let Some(cause) = &report.stopped {
        return Err(Failure::Failed(format!("ended before all dead letters were examined: {cause}")));
    }
    match (report.count + report.copies, report.skipped.len()) {
        (_, 0) if !report.complete => {
            let text = "not all dead letters were looked at: others hold some for up to 10 minutes, or some \
                        arrived during the run";
            Err(Failure::Failed(text.to_owned()))
        }
        (_, 0) if purges && report.payloads_left > 0 => {
            Err(Failure::Failed(format!("{} payloads could not be deleted", report.payloads_left)))
        }
        (0, 0) => Err(Failure::NothingMatched("no dead letter matches".to_owned())),
        (_, 0) => Ok(()),
        (_, skipped) => Err(Failure::Failed(format!("{skipped} dead letters were skipped"))),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use jobqueue::Storage;
    use jobqueue_admin::{AccessLevel, Admin};

    use super::*;
    use crate::commands::{self, Cli};

    #[test]
    fn redrive_that_only_deletes_copies_has_matched() {
        let mut report = BulkReport::default();
        (report.complete, report.copies) = (true, 1);
        let verdict = |report: &BulkReport| verdict(report, false, None, &CancellationToken::new());
        assert!(verdict(&report).is_ok());
        report.copies = 0;
        assert!(matches!(verdict(&report), Err(Failure::NothingMatched(_))));
    }

    #[test]
    fn killed_dry_run_leaves_no_plan() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.json");
        std::mem::forget(PlanFile::create(&path));
        assert!(!path.exists());
        let (first, second) = (PlanFile::create(&path).unwrap(), PlanFile::create(&path).unwrap());
        first.write(&[7]).unwrap();
        assert!(second.write(&[8]).is_err(), "the path is taken");
        assert!(PlanFile::create(&path).is_err(), "the path is taken");
        assert_eq!(read_plan::<[u32; 1]>(&path).unwrap(), [7]);
    }

    #[tokio::test]
    async fn interrupted_dry_run_leaves_no_plan() {
        let folder = tempfile::tempdir().unwrap();
        let storage = format!("sqlite:{}", folder.path().join("jobs.db").display());
        let admin = Admin::builder(Storage::connect(&storage).await.unwrap()).access(AccessLevel::Operate);
        admin.build().create_queue("mails").await.unwrap();
        let plan = folder.path().join("plan.json");
        let path = plan.to_str().unwrap();
        let redrive = ["dead", "redrive", "mails", "--all", "--dry-run", "--plan", path];
        let cli = Cli::parse_from([&["jobqueue", "--storage", &storage], &redrive[..]].concat());
        let stop = CancellationToken::new();
        stop.cancel();
        let stopped = commands::run(cli, &stop).await;
        assert!(matches!(stopped, Err(Failure::Interrupted(_))), "{stopped:?}");
        assert!(!plan.exists(), "the same command again would be refused");
    }
}
