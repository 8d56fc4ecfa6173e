//! `queues`: lists all queues in one table.

mod watch;

use std::time::Duration;

use clap::Args;
use futures_util::join;
use jobqueue::Error;
use jobqueue::storage::{StoreError, StoreErrorKind};
use jobqueue_admin::{HELD_UP, JobCounts, QueueOverview, WorkerOverview, silence};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::args::Global;
use crate::contexts::{self, Item};
use crate::exit::Failure;
use crate::output::{Output, say};
use crate::session::{Need, Session};
use crate::text::{age, cell, clean, duration, things};

#[derive(Args)]
pub(crate) struct QueuesArguments {
    /// Repeats the list until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// The time between two lists; each costs two requests, three for each queue, and one for each worker
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "2s", requires = "watch")]
    interval: Duration,
}

pub(crate) async fn run(
    global: &Global,
    arguments: QueuesArguments,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    if !arguments.watch {
        let opened = Session::open_all(global, Need::Read).await?;
        let rows = async |session: &Session| {
            let (rows, note) = read(session).await?;
            if let Some(note) = note {
                say(&note);
            }
            Ok(rows)
        };
        return print(global.output, &contexts::read(&opened, rows).await?);
    }
    watch::run(global, arguments.interval.max(Duration::from_millis(100)), stop).await
}

/// A queue, and its numbers of jobs and the texts of its oldest job and its state in the table.
#[derive(Clone, Serialize)]
struct QueueRow {
    #[serde(flatten)]
    queue: QueueOverview,
    #[serde(skip)]
    counts: JobCounts,
    #[serde(skip)]
    oldest: String,
    #[serde(skip)]
    state: String,
}

/// Reads all queues of a storage, and returns a note if the records of its workers cannot be read, or are all
/// stale.
async fn read(session: &Session) -> Result<(Vec<QueueRow>, Option<String>), Failure> {
    let (queues, workers) = join!(session.admin.queues(), session.admin.all_workers());
    // If the storage forbids reading these records, there is no note.
    let is_forbidden = |error: &&Error| {
        StoreError::in_chain(*error).is_some_and(|cause| cause.kind() == StoreErrorKind::Unauthorized)
    };
    let place = session.context.as_ref().map_or_else(String::new, |name| format!(" of `{name}`"));
    let note = workers.as_ref().err().filter(|error| !is_forbidden(error)).map(|error| {
        format!(
            "the records of workers{place} cannot be read, so STATE says nothing about workers, and RUNNING is \
             unknown unless the storage counts leases: {error:?}"
        )
    });
    let note = note.or_else(|| silence(workers.as_deref().ok()?));
    let workers = workers.ok();
    let row = |queue: QueueOverview| QueueRow {
        counts: queue.job_counts(workers.as_deref()),
        oldest: oldest(&queue, workers.as_deref()),
        state: state(&queue, workers.as_deref()),
        queue,
    };
    Ok((queues?.into_iter().map(row).collect(), note))
}

fn print(output: Output, queues: &[Item<QueueRow>]) -> Result<(), Failure> {
    let columns = ["QUEUE", "#WAITING", "#RUNNING", "#HIDDEN", "#OLDEST", "#DEAD", "STATE"];
    contexts::print(output, queues, "queues", &columns, |QueueRow { queue, counts, oldest, state }| {
        vec![vec![
            cell(&queue.name),
            waiting(queue, *counts),
            known(counts.running),
            known(counts.hidden),
            oldest.clone(),
            known(queue.dead_letters),
            state.clone(),
        ]]
    })
}

/// Returns a number, or a question mark if it could not be read.
pub(crate) fn known(number: Option<u64>) -> String {
    number.map_or_else(|| "?".to_owned(), |number| number.to_string())
}

/// Returns the number of waiting jobs; `32+` if only those are known that a peek has shown.
pub(crate) fn waiting(queue: &QueueOverview, counts: JobCounts) -> String {
    match (counts.waiting, queue.visible) {
        (None, Some(visible)) => format!("{visible}+"),
        (waiting, _) => known(waiting),
    }
}

/// Returns the age of the oldest job; a question mark if it is unknown.
pub(crate) fn oldest(queue: &QueueOverview, workers: Option<&[WorkerOverview]>) -> String {
    let job = queue.oldest_job_of(workers.unwrap_or_default());
    match (job.age, job.obstacle()) {
        (Some(time), Some(obstacle)) => format!("{} {obstacle}", age(time)),
        (Some(time), None) => age(time),
        (None, _) if job.is_exact => "-".to_owned(),
        (None, _) => "?".to_owned(),
    }
}

fn state(queue: &QueueOverview, workers: Option<&[WorkerOverview]>) -> String {
    let mut words = Vec::new();
    words.extend(queue.error.as_deref().map(clean));
    if let Some(pause) = &queue.pause {
        words.push(clean(&format!("paused{pause}")));
    }
    if workers.is_some_and(|workers| queue.is_unserved(workers)) {
        words.push("no worker seen".to_owned());
    }
    words.extend(workers.and_then(|workers| queue.open_circuits(workers)));
    words.extend(queue.held_up.then(|| HELD_UP.to_owned()));
    if !queue.warnings.is_empty() {
        words.push(things(queue.warnings.len(), "warning"));
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use jobqueue::Storage;
    use jobqueue_admin::{AccessLevel, Admin};

    use super::*;
    use crate::commands::doctor::queue_checks;

    #[tokio::test]
    async fn queue_whose_dead_letters_are_not_counted_shows_the_rest() {
        let admin = Admin::builder(Storage::memory()).access(AccessLevel::Operate).build();
        admin.create_queue("mails").await.unwrap();
        let _ = admin.pause("mails").await.unwrap();
        let mut queue = admin.queue("mails").await.unwrap();
        queue.error = Some("the dead letters cannot be counted".to_owned());
        let words = state(&queue, None);
        assert!(words.contains("cannot be counted") && words.contains("paused"), "{words}");
        let session = Session::for_test(admin);
        let checks: Vec<_> = queue_checks(&session, &queue).await.iter().map(|check| check.check).collect();
        assert_eq!(checks, ["queue", "settings", "paused", "permissions"]);
    }

    // round 33: STATE was empty, OLDEST was 0s, and `doctor` had no line.
    #[tokio::test]
    async fn queue_that_is_held_up_by_a_key_says_so() {
        let admin = Admin::builder(Storage::memory()).access(AccessLevel::Operate).build();
        admin.create_queue("mails").await.unwrap();
        let mut queue = admin.queue("mails").await.unwrap();
        (queue.held_up, queue.visible) = (true, Some(2));
        assert_eq!((state(&queue, None), oldest(&queue, None)), (HELD_UP.to_owned(), "?".to_owned()));
        let session = Session::for_test(admin);
        for (minutes, is_warning) in [(14, false), (16, true)] {
            queue.oldest_held_up = Some(Duration::from_secs(minutes * 60));
            assert_eq!(oldest(&queue, None), format!("{minutes}m 0s held up by a key"));
            let checks = queue_checks(&session, &queue).await;
            let check = checks.iter().find(|check| check.check == "held up").unwrap();
            let row = serde_json::to_value(check).unwrap();
            assert_eq!(row["verdict"] == "warning", is_warning, "{row}");
            let detail = row["detail"].as_str().unwrap();
            assert!(
                detail.contains(" groups mails") && detail.contains("peek mails --state backing-off"),
                "{row}"
            );
        }
    }
}
