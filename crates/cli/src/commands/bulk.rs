//! `dead redrive` and `dead purge`: many dead letters at once.

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use jobqueue::admin::BulkReport;
use tokio_util::sync::CancellationToken;

use crate::args::Global;
use crate::confirm;
use crate::exit::Failure;
use crate::filter::Filter;
use crate::session::{Need, Session};
use crate::text::clean;

/// The most jobs and skipped jobs that a text names.
const NAMED: usize = 10;

#[derive(Args)]
pub(crate) struct Arguments {
    /// The name of the queue
    queue: String,
    #[command(flatten)]
    filter: Filter,
    /// Takes all dead letters, without a filter
    #[arg(long)]
    all: bool,
    /// Takes at most this many
    #[arg(long, value_name = "COUNT")]
    limit: Option<u64>,
    /// Takes at most this many a second
    #[arg(long, value_name = "PER_SECOND", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// Only reports the changes; meanwhile the dead letters are invisible to others
    #[arg(long)]
    dry_run: bool,
}

pub(crate) async fn run(
    global: &Global,
    arguments: Arguments,
    purges: bool,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let filter = arguments.filter.selection();
    if filter.selects_all() != arguments.all {
        return Err(Failure::Usage(match arguments.all {
            true => "--all and a filter exclude each other".to_owned(),
            false => {
                "no dead letters are selected: add a filter such as --kind or --reason, or --all".to_owned()
            }
        }));
    }
    let need = if arguments.dry_run { Need::Inspect } else { Need::Change };
    let session = Session::open(global, need).await?;
    if !arguments.dry_run {
        ask(&session, global.yes, &arguments.queue, purges, stop).await?;
    }
    let bar = progress_bar();
    let admin = &session.admin;
    let mut bulk = if purges { admin.purge(&arguments.queue) } else { admin.redrive(&arguments.queue) };
    bulk = bulk.filter(filter).dry_run(arguments.dry_run).stop_when(stop.clone());
    if let Some(limit) = arguments.limit {
        bulk = bulk.limit(limit);
    }
    if let Some(rate) = arguments.rate {
        bulk = bulk.per_second(rate);
    }
    let shown = bar.clone();
    let report = bulk
        .on_progress(move |progress| {
            shown.set_length(progress.total);
            shown.set_position(progress.done);
        })
        .run()
        .await;
    bar.finish_and_clear();
    let report = report?;
    global.output.value(&report, || text(&report, purges))?;
    verdict(&report, stop)
}

/// Asks before a change: a purge for the name of the queue, a redrive for the name of its production context.
async fn ask(
    session: &Session,
    yes: bool,
    queue: &str,
    purges: bool,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    if !purges {
        let change = format!("put dead letters of `{queue}` back");
        return confirm::production(session, yes, &change, stop).await;
    }
    let dead = session.admin.queue(queue).await?.dead_letters;
    let place = session
        .production
        .as_ref()
        .map_or_else(String::new, |name| format!(" of the production context `{name}`"));
    let question =
        format!("The purge deletes dead letters of `{queue}`{place}, which has about {dead}, for good.");
    confirm::typed(yes, &question, queue, stop).await
}

/// Returns a bar on standard error, hidden unless that is a terminal.
fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    match ProgressStyle::with_template("{wide_bar} {pos}/{len} {per_sec} {eta}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn text(report: &BulkReport, purges: bool) -> String {
    let verb = match (report.dry_run, purges) {
        (true, true) => "would be deleted",
        (true, false) => "would be put back",
        (false, true) => "deleted",
        (false, false) => "put back",
    };
    let mut text =
        format!("{} {verb}, {} skipped, {} left\n", report.count, report.skipped.len(), report.left);
    if report.dry_run {
        for id in report.jobs.iter().take(NAMED) {
            text.push_str(&format!("  {}\n", clean(id)));
        }
        if report.jobs.len() > NAMED {
            text.push_str(&format!("  and {} more; --output json names all\n", report.jobs.len() - NAMED));
        }
    }
    for skipped in report.skipped.iter().take(NAMED) {
        let moved = if skipped.maybe_moved { " (perhaps in both queues)" } else { "" };
        text.push_str(&format!("  skipped {}: {}{moved}\n", clean(&skipped.id), clean(&skipped.error)));
    }
    text
}

fn verdict(report: &BulkReport, stop: &CancellationToken) -> Result<(), Failure> {
    if stop.is_cancelled() && report.stopped.is_some() {
        let text = format!(
            "interrupted after {} dead letters; run the same command again to continue",
            report.count
        );
        return Err(Failure::Interrupted(text));
    }
    if let Some(cause) = &report.stopped {
        return Err(Failure::Failed(format!("ended before all dead letters were examined: {cause}")));
    }
    match (report.count, report.skipped.len()) {
        (0, 0) => Err(Failure::NothingMatched("no dead letter matches".to_owned())),
        (_, 0) => Ok(()),
        (_, skipped) => Err(Failure::Failed(format!("{skipped} dead letters were skipped"))),
    }
}
