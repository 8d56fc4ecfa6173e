//! `sweep`: removes payloads and records that no job needs any more.

use std::time::Duration;

use clap::Args;
use jobqueue::maintenance::SweepOptions;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::args::{Given, Global};
use crate::confirm;
use crate::exit::Failure;
use crate::session::{Need, Session};
use crate::text::duration;

#[derive(Args)]
pub(crate) struct SweepArguments {
    /// The time that a payload or record is kept after it has expired, at least an hour
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1d")]
    grace: Duration,
    /// Also removes old payloads of messages that never expire, if their queues are empty and no dead letter needs them
    #[arg(long)]
    drained_queues: bool,
    /// Removes at most this many
    #[arg(long, value_name = "COUNT")]
    limit: Option<u64>,
    /// Only counts; with --drained-queues, dead letters are invisible to others meanwhile
    #[arg(long)]
    dry_run: bool,
}

#[derive(Serialize)]
struct SweepSummary {
    dry_run: bool,
    seen: u64,
    removed: u64,
    bytes: u64,
    failed: u64,
}

pub(crate) async fn run(
    global: &Global,
    arguments: SweepArguments,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let session = match (arguments.dry_run, arguments.drained_queues) {
        (true, false) => Session::open(global, Need::Read).await?,
        (true, true) => Session::open(global, Need::Inspect).await?,
        (false, _) => {
            confirm::change(global, Need::Change, "remove expired payloads and records", stop).await?
        }
    };
    let options = SweepOptions::new()
        .grace(arguments.grace)
        .drained_queues(arguments.drained_queues)
        .dry_run(arguments.dry_run)
        .stop(stop.clone())
        .given(arguments.limit, SweepOptions::limit);
    let report = session.admin.sweep(options).await?;
    let swept = SweepSummary {
        dry_run: arguments.dry_run,
        seen: report.seen,
        removed: report.removed,
        bytes: report.bytes,
        failed: report.failed,
    };
    let text = || {
        let verb = if swept.dry_run { "would be removed" } else { "removed" };
        format!(
            "{} of {} blobs {verb} ({} bytes), {} failed",
            swept.removed, swept.seen, swept.bytes, swept.failed
        )
    };
    let printed = match swept.dry_run {
        true => global.output.value(&swept, text),
        false => global.output.change(&swept, text),
    };
    if stop.is_cancelled() {
        return Err(Failure::Interrupted("interrupted before all blobs were examined".to_owned()));
    }
    match swept.failed {
        0 => printed,
        failed => Err(Failure::Failed(format!("{failed} blobs could not be removed"))),
    }
}
