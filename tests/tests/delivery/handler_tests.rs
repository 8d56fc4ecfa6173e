//! The tools with which users test their handlers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use jobqueue::sqlite::rusqlite::{Connection, TransactionBehavior};
use jobqueue::{
    Context, ErrorKind, JobError, JobInfo, Outcome, QueueMessage, Runtime, SendOptions, State, Storage,
    memory,
};
use jobqueue_testing::{HandlerTest, run_one};
use jobqueue_tests::jobs::{Task, task};
use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize, QueueMessage)]
#[message(queue = "mails", kind = "mail")]
struct Mail {
    to: String,
}

async fn forward(task: Task, ctx: Context) -> Result<(), JobError> {
    for to in ["a", "b"] {
        ctx.queue::<Mail>().await?.send(&Mail { to: format!("{to}@{}", task.name) }).await?;
    }
    ctx.queue::<Task>().await?.send(&Task { name: "again".into(), data: String::new() }).await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_run_tells_what_it_has_sent_and_nothing_else() {
    for _ in 0..2 {
        let run = run_one(forward, &task("example.org")).await.unwrap();
        run.assert_completed();
        let mails = run.sent::<Mail>().await.unwrap();
        assert_eq!(mails, [Mail { to: "a@example.org".into() }, Mail { to: "b@example.org".into() }]);
        assert_eq!(run.sent::<Task>().await.unwrap(), [task("again")], "not the message of the run");
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_goes_through_rules_and_state() {
    let invalid = run_one(forward, &task("")).await.unwrap_err();
    assert_eq!(invalid.kind(), ErrorKind::Invalid);
    let handler = async |_: Task, State(limit): State<u32>| match limit {
        0 => Err(JobError::dead_letter("over the limit")),
        1 => Err(JobError::retry("not yet")),
        2 => panic!("planted"),
        _ => Ok(()),
    };
    let missing = run_one(handler, &task("a")).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Configuration);
    let with = |limit: u32| HandlerTest::new().state(limit);
    with(0).run_one(handler, &task("a")).await.unwrap().assert_dead_lettered("over the limit");
    with(1).run_one(handler, &task("a")).await.unwrap().assert_retried("not yet");
    let panicked = with(2).run_one(handler, &task("a")).await.unwrap();
    assert!(matches!(panicked.outcome, Outcome::Retried(_)), "{panicked:?}");
    with(3).run_one(handler, &task("a")).await.unwrap().assert_completed();
}

#[derive(Debug, PartialEq, Serialize, Deserialize, QueueMessage)]
#[message(queue = "mails", kind = "receipt")]
struct Receipt {
    number: u32,
}

#[tokio::test(start_paused = true)]
async fn messages_of_two_kinds_in_a_queue_are_both_found() {
    let handler = async |_: Task, ctx: Context| {
        let (mails, receipts) = (ctx.queue::<Mail>().await?, ctx.queue::<Receipt>().await?);
        for number in 1..=40 {
            receipts.send(&Receipt { number }).await?;
            mails.send(&Mail { to: number.to_string() }).await?;
        }
        Ok::<(), JobError>(())
    };
    let mails: Vec<_> = (1..=40).map(|number: u32| Mail { to: number.to_string() }).collect();
    let receipts: Vec<_> = (1..=40).map(|number| Receipt { number }).collect();
    let run = run_one(handler, &task("a")).await.unwrap();
    assert_eq!(run.sent::<Mail>().await.unwrap(), mails);
    assert_eq!(run.sent::<Receipt>().await.unwrap(), receipts);
    let run = run_one(handler, &task("a")).await.unwrap();
    assert_eq!(run.sent::<Receipt>().await.unwrap(), receipts);
    assert_eq!(run.sent::<Mail>().await.unwrap(), mails);
    assert!(run.sent::<Mail>().await.unwrap().is_empty(), "they are taken");
}

#[tokio::test(start_paused = true)]
async fn handler_that_asks_to_be_tried_again_at_once_runs_once() {
    for error in [|| JobError::retry_after(Duration::ZERO, "busy"), || JobError::snooze(Duration::ZERO)] {
        let runs = Arc::new(AtomicU32::new(0));
        let handler = move |_: Task, State(runs): State<Arc<AtomicU32>>| {
            runs.fetch_add(1, Ordering::Relaxed);
            async move { Err::<(), _>(error()) }
        };
        let test = HandlerTest::new().state(Arc::clone(&runs));
        let run = test.run_one(handler, &task("a")).await.unwrap();
        assert!(matches!(run.outcome, Outcome::Retried(_) | Outcome::Released(_)), "{run:?}");
        assert_eq!(runs.load(Ordering::Relaxed), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn handler_finds_what_its_message_was_sent_with() {
    let handler = async |_: Task, job: JobInfo| match job.headers.get("tenant").map(String::as_str) {
        Some("blue") if job.key.as_deref() == Some("k") && *job.id == *"7" => Ok(()),
        other => Err(JobError::dead_letter(format!("{other:?}: {job:?}"))),
    };
    let options = SendOptions::new().header("tenant", "blue").key("k").id("7");
    let run = HandlerTest::new().run_one_with(handler, &task("a"), options).await.unwrap();
    run.assert_completed();
    let delayed = SendOptions::new().header("tenant", "red").delay(Duration::from_secs(1_800));
    let run = HandlerTest::new().run_one_with(handler, &task("a"), delayed).await.unwrap();
    run.assert_dead_lettered("red");
    let never = SendOptions::new().delay(Duration::from_secs(7_200));
    let error = HandlerTest::new().run_one_with(handler, &task("a"), never).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

// newcomers 28, A11
#[tokio::test]
async fn handler_that_completes_its_job_in_a_transaction_runs_on_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let storage = Storage::connect(&format!("sqlite:{}", path.display())).await.unwrap();
    let handler = move |task: Task, ctx: Context, State(fails): State<bool>| {
        let path = path.clone();
        async move {
            let mails = ctx.queue::<Mail>().await?;
            let mut connection = Connection::open(path)?;
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            if fails {
                return Err(JobError::retry_after(Duration::ZERO, "not yet"));
            }
            mails.send(&Mail { to: task.name }).in_sqlite(&transaction)?;
            ctx.complete_in_sqlite(&transaction)?;
            transaction.commit()?;
            Ok::<(), JobError>(())
        }
    };
    let test = HandlerTest::new().storage(storage);
    let run = test.clone().state(true).run_one(handler.clone(), &task("a")).await.unwrap();
    run.assert_retried("not yet");
    // The message of the first run does not come into the second one.
    let run = test.state(false).run_one(handler, &task("b")).await.unwrap();
    run.assert_completed();
    assert_eq!(run.sent::<Mail>().await.unwrap(), [Mail { to: "b".into() }]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_assertion_prints_the_error() {
    let run = run_one(async |_: Task| Err::<(), _>(JobError::retry("no disk")), &task("a")).await.unwrap();
    let panic =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.assert_completed())).unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.contains("retried") && text.contains("no disk"), "{text}");
}

// round 31, newcomer b 2: it waited for an hour, or had the result of the other run.
#[tokio::test(start_paused = true)]
async fn run_whose_message_another_run_has_taken_says_so() {
    let handler = async |_: Task| Ok::<(), JobError>(());
    for sends in [false, true] {
        let storage = memory::open_on(Runtime::paused());
        // As another run begins.
        let other = async {
            tokio::time::sleep(Duration::from_secs(10)).await;
            let queue = storage.queue_named::<Task>("one-run").await.unwrap();
            queue.clear().await.unwrap();
            if sends {
                let _ = queue.send(&task("other")).await.unwrap();
            }
        };
        let (test, message) = (HandlerTest::new().storage(storage.clone()), task("a"));
        let delayed = SendOptions::new().delay(Duration::from_secs(60));
        let before = tokio::time::Instant::now();
        let (run, ()) = tokio::join!(test.run_one_with(handler, &message, delayed), other);
        let error = run.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("another run on the same storage"), "{error}");
        assert!(before.elapsed() < Duration::from_secs(60));
    }
}

// review of round 31, e 3: the first delivery of the other queue counted as the end of the run.
#[tokio::test(start_paused = true)]
async fn handler_on_another_queue_does_not_end_the_run() {
    let storage = memory::open_on(Runtime::paused());
    // A former run on this storage has left it.
    let mails = storage.queue::<Mail>().await.unwrap();
    let _ = mails.send(&Mail { to: "a".into() }).await.unwrap();
    let post = async |_: Mail| Err::<(), _>(JobError::dead_letter("no such address"));
    let test = HandlerTest::new().storage(storage).worker(move |builder| builder.handle(post));
    let handler = async |_: Task| Ok::<(), JobError>(());
    // The other message ends first.
    let delayed = SendOptions::new().delay(Duration::from_secs(60));
    test.run_one_with(handler, &task("a"), delayed).await.unwrap().assert_completed();
}

// round 31, newcomer b 10
#[tokio::test(start_paused = true)]
async fn snooze_is_asserted_with_its_cause() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let handler = async |task: Task| match task.name.as_str() {
        "paused" => Err::<(), _>(JobError::snooze_because(HOUR, "the endpoint is paused")),
        "fails" => Err(JobError::retry("the endpoint is paused")),
        _ => Err(JobError::snooze(HOUR)),
    };
    run_one(handler, &task("paused")).await.unwrap().assert_snoozed("the endpoint is paused");
    run_one(handler, &task("other")).await.unwrap().assert_snoozed("snoozed");
    let failed = run_one(handler, &task("fails")).await.unwrap();
    let asserted = || failed.assert_snoozed("the endpoint is paused");
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(asserted)).is_err());
}
