//! `sweep`: removes payloads and records that no job needs any more.

use std::time::Duration;

use clap::Args;
use jobqueue::maintenance::SweepOptions;
use serde_json::json;
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
    /// Also removes old payloads of messages that never expire, if their queues and dead-letter queues are
    /// empty; leaves those of queues that the storage does not have; do not use it while dead letters are
    /// redriven
    #[arg(long)]
    drained_queues: bool,
    /// Removes at most this many payloads and records
    #[arg(long, value_name = "COUNT")]
    limit: Option<u64>,
    /// Only counts the payloads and records
    #[arg(long)]
    dry_run: bool,
}

pub(crate) async fn run(
    global: &Global,
    arguments: SweepArguments,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let session = if arguments.dry_run {
        Session::open(global, Need::Read).await?
    } else {
        confirm::change(global, Need::Change, "remove expired payloads and records", stop).await?
    };
    let options = SweepOptions::new()
        .grace(arguments.grace)
        .drained_queues(arguments.drained_queues)
        .dry_run(arguments.dry_run)
        .stop(stop.clone())
        .given(arguments.limit, SweepOptions::limit);
    let report = session.admin.sweep(options).await?;
    let dry_run = arguments.dry_run;
    let swept = json!({
        "dry_run": dry_run,
        "seen": report.seen,
        "removed": report.removed,
        "bytes": report.bytes,
        "failed": report.failed,
        "without_queue": report.without_queue,
    });
    let text = || {
        let verb = if dry_run { "would be removed" } else { "removed" };
        let mut text = format!(
            "{} of {} blobs {verb} ({} bytes), {} failed",
            report.removed, report.seen, report.bytes, report.failed
        );
        if report.without_queue > 0 {
            text += &format!(
                "; {} stay: their queue was deleted, or another storage that uses these blobs has it",
                report.without_queue
            );
        }
        text
    };
    let printed =
        if dry_run { global.output.value(&swept, text) } else { global.output.change(&swept, text) };
    if stop.is_cancelled() {
        return Err(Failure::Interrupted("interrupted before all blobs were examined".to_owned()));
    }
    match report.failed {
        0 => printed,
        failed => Err(Failure::Failed(format!("{failed} blobs could not be removed"))),
    }
}
