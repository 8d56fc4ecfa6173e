//! Jobs that are sent again after their end, on a queue that detects duplicates.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jobqueue::clock::ManualClock;
use jobqueue::queue::SendUniqueOutcome;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{JobError, Queue, QueueMessage, Runtime, Storage, Worker};
use jobqueue_testing::faults::{Fault, Faulty};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::jobs::{Work, work};
use super::late_answers::until;
use super::{Bench, MINUTE};

const HOUR: Duration = Duration::from_secs(3_600);

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "work", kind = "report")]
struct Report {
    #[message(key)]
    month: String,
}

fn bench() -> Bench {
    Bench::with(json!({ "RequiresDuplicateDetection": true }), &[])
}

async fn reports(storage: &Storage) -> Queue<Report> {
    storage.queue().await.unwrap()
}

async fn delayed(queue: &Queue<Report>) -> SendUniqueOutcome {
    let may = Report { month: "may".into() };
    queue.send(&may).unique_for(HOUR * 48).delay(HOUR).await.unwrap()
}

/// The service dropped the next message of the key as a repetition of the one that was deleted, and the send
/// returned `Sent`.
// audit 23, sending A1
#[tokio::test]
async fn next_send_after_a_canceller_died_is_no_repetition() {
    let bench = bench();
    assert!(delayed(&reports(&bench.storage).await).await.is_sent());
    let faulty = Faulty::new(&bench.another());
    faulty.plan(Operation::Delete, 1, Fault::HangAfter);
    let dying = reports(&faulty.storage()).await;
    let deleted = async {
        while bench.count("scheduled") > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        cancelled = dying.cancel_unique("may") => panic!("{cancelled:?}"),
        () = deleted => {}
    }
    // The key is held for 45 seconds.
    let clock = Arc::new(ManualClock::at(SystemTime::now() + MINUTE));
    let later = bench.another().with_runtime(Runtime::new().with_clock(clock));
    assert!(delayed(&reports(&later).await).await.is_sent());
    assert_eq!(bench.count("scheduled"), 1);
}

/// The service answers a dropped repetition with the number of no message: the job counted as received by a
/// worker.
// audit 23, sending B2
#[tokio::test]
async fn job_whose_send_was_repeated_is_not_called_received() {
    for is_unique in [false, true] {
        let bench = bench();
        let faulty = Faulty::new(&bench.another());
        faulty.plan(Operation::Put, 1, Fault::DropAnswer(StoreErrorKind::Timeout));
        let queue = reports(&faulty.storage()).await;
        let cancelled = if is_unique {
            assert!(delayed(&queue).await.is_sent());
            queue.cancel_unique("may").await
        } else {
            let sent = queue.send(&Report { month: "may".into() }).delay(HOUR).await.unwrap();
            queue.cancel(&sent).await
        };
        assert_eq!(bench.count("scheduled"), 1, "it waits");
        assert!(cancelled.as_ref().is_err_and(|error| error.is_outcome_unknown()), "{cancelled:?}");
    }
}

/// The service dropped the message of the second send, for which the key waited for eight minutes and more;
/// and that of the third where the second was refused, because the log knew the job again.
#[tokio::test]
async fn job_in_order_that_is_sent_again_after_its_dead_letter_holds_up_no_key() {
    for is_refused in [false, true] {
        let bench = bench();
        let faulty = Faulty::new(&bench.storage);
        let queue = faulty.storage().queue::<Work>().await.unwrap();
        let send = async |id: &str| queue.send(&work(id)).id(id).key("k").in_order().await;
        let (begun, mut jobs) = mpsc::unbounded_channel();
        let handler = move |job: Work| {
            begun.send(job.name.clone()).unwrap();
            async move { if job.name == "rejected" { Err(JobError::dead_letter("no")) } else { Ok(()) } }
        };
        let sending = async {
            send("rejected").await.unwrap();
            assert_eq!(jobs.recv().await.unwrap(), "rejected");
            until(|| bench.count("deadLetters") == 1).await;
            if is_refused {
                faulty.plan(Operation::Put, 1, Fault::Refuse(StoreErrorKind::Unauthorized));
                send("rejected").await.unwrap_err();
            }
            send("rejected").await.unwrap();
            send("next").await.unwrap();
            let next = [jobs.recv().await.unwrap(), jobs.recv().await.unwrap()];
            assert_eq!(next, ["rejected", "next"]);
        };
        let worker = Worker::builder(bench.another()).max_idle_delay(Duration::from_millis(200));
        let sending = async { timeout(MINUTE, sending).await.expect("the key stands still") };
        let _ = worker.handle(handler).build().unwrap().run_until(sending).await.unwrap();
    }
}
