//! Unique work when senders die and answers are lost, its cancellation, and the sweep of its records. In paused time
//! on memory.

use std::time::Duration;

use jobqueue::maintenance::{SweepOptions, sweep};
use jobqueue::queue::SendUniqueOutcome;
use jobqueue::storage::ContainerName;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{Queue, QueueMessage, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::death;
use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};

#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "reports", kind = "report")]
struct Report {
    #[message(key)]
    of: String,
}

const HOUR: Duration = Duration::from_secs(3600);

fn may() -> Report {
    Report { of: "may".into() }
}

async fn reports(storage: &Storage) -> Queue<Report> {
    storage.clone().with_runtime(jobqueue_tests::jobs::runtime()).queue().await.unwrap()
}

/// Receives and deletes the messages. Returns their ids.
async fn sent(queue: &Queue<Report>) -> Vec<String> {
    let mut ids = Vec::new();
    while let Some(delivery) = queue.receive(Duration::ZERO).await.unwrap() {
        ids.push(delivery.info().id.to_string());
        delivery.complete().await.unwrap();
    }
    ids
}

// I12b
#[tokio::test(start_paused = true)]
async fn crash_of_a_unique_send_blocks_nobody() {
    // The claim, the message, the record that it was sent; each performed or not.
    for (nth, performed) in (1..=3).flat_map(|nth| [(nth, false), (nth, true)]) {
        let at = format!("death at write {nth}, performed: {performed}");
        let storage = Storage::memory();
        let queue = reports(&storage).await;
        // Makes the container, so that each write is what it is meant to be.
        queue.send(&Report { of: "april".into() }).unique_for(HOUR).await.unwrap();
        assert_eq!(sent(&queue).await.len(), 1);

        let faulty = Faulty::new(&storage);
        let doomed = reports(&faulty.storage()).await;
        let writes = death::at_write(&faulty, nth, performed);
        assert!(timeout(Duration::from_secs(1), doomed.send(&may()).unique_for(HOUR)).await.is_err(), "{at}");
        assert_eq!(writes.count(), nth, "{at}");
        let next =
            timeout(Duration::from_secs(60), queue.send(&may()).unique_for(HOUR)).await.expect(&at).unwrap();
        let again = queue.send(&may()).unique_for(HOUR).await.unwrap();
        assert!(!again.is_sent() && again.id() == next.id(), "{at}");
        let mut ids = sent(&queue).await;
        let copies = ids.len();
        ids.dedup();
        assert_eq!(ids, [next.id()], "{at}: all copies are one job");
        // The message was stored, and its record does not say so.
        let doubt = (nth, performed) == (2, true) || (nth, performed) == (3, false);
        assert_eq!(copies, if doubt { 2 } else { 1 }, "{at}");
    }
}

// D5
#[tokio::test(start_paused = true)]
async fn of_twenty_senders_of_one_explicit_id_one_sends() {
    // Each call takes some time, so that all of them claim the key at once.
    let storage = Faulty::new(&Storage::memory()).storage();
    let queue = reports(&storage).await;
    let may = may();
    let send = || queue.send(&may).unique_for(HOUR).id("may-1").into_future();
    let all = futures_util::future::join_all((0..20).map(|_| send())).await;
    let all: Vec<_> = all.into_iter().map(Result::unwrap).collect();
    assert_eq!(all.iter().filter(|one| one.is_sent()).count(), 1);
    assert!(all.iter().all(|one| one.id() == "may-1"));
    assert_eq!(sent(&queue).await, ["may-1"]);
}

#[tokio::test(start_paused = true)]
async fn child_of_a_batch_is_not_cancelled_by_its_key() {
    let storage = Storage::memory();
    let queue = reports(&storage).await;
    let mut batch = storage.batch("b").await.unwrap();
    batch.send(&may()).unique_for(HOUR).await.unwrap();
    let error = queue.cancel_unique("may").await.unwrap_err();
    assert!(error.kind() == jobqueue::ErrorKind::Conflict && !error.is_retryable(), "{error:?}");
    assert_eq!(sent(&queue).await, ["b/0"]);
}

// D10
#[tokio::test(start_paused = true)]
async fn failed_cancel_error_does_not_mention_sending() {
    let faulty = Faulty::new(&Storage::memory());
    let queue = reports(&faulty.storage()).await;
    delayed(&queue).await;
    faulty.plan_always(Operation::GetBlob, Fault::Refuse(StoreErrorKind::Unavailable));
    let error = queue.cancel_unique("may").await.unwrap_err();
    assert!(error.kind() == jobqueue::ErrorKind::Storage && error.is_retryable(), "{error:?}");
    assert!(error.to_string().contains("the job is not cancelled"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn lost_answers_do_not_send_twice_what_was_sent() {
    // Of the claim, and of the record that it was sent.
    for nth in [1, 2] {
        let storage = Storage::memory();
        let faulty = Faulty::new(&storage);
        let (queue, flaky) = (reports(&storage).await, reports(&faulty.storage()).await);
        queue.send(&Report { of: "april".into() }).unique_for(HOUR).await.unwrap();
        assert_eq!(sent(&queue).await.len(), 1);
        faulty.plan(Operation::PutBlob, nth, Fault::DropAnswer(StoreErrorKind::Timeout));
        let first = flaky.send(&may()).unique_for(HOUR).await.unwrap();
        let second = queue.send(&may()).unique_for(HOUR).await.unwrap();
        assert!(first.is_sent() && !second.is_sent() && first.id() == second.id(), "write {nth}");
        assert_eq!(sent(&queue).await, [first.id()], "write {nth}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sweep_removes_records_whose_window_is_over_and_no_others() {
    let storage = Storage::memory();
    let queue = reports(&storage).await;
    queue.send(&may()).unique_for(HOUR).await.unwrap();
    queue.send(&Report { of: "june".into() }).unique_for(HOUR * 24 * 30).await.unwrap();
    sleep(HOUR * 24 * 3).await;
    let swept = sweep(&storage, SweepOptions::new()).await.unwrap();
    assert_eq!(swept.seen, 2);
    assert_eq!(swept.removed, 1);
    assert_eq!(swept.failed, 0);
    let container = ContainerName::new("jobqueue-unique").unwrap();
    assert_eq!(storage.blobs().list_blobs(&container, "", None).await.unwrap().blobs.len(), 1);
    assert!(queue.send(&may()).unique_for(HOUR).await.unwrap().is_sent());
    assert!(!queue.send(&Report { of: "june".into() }).unique_for(HOUR).await.unwrap().is_sent());
}

/// The record is found after its window is long over, and used again before it is removed.
#[tokio::test(start_paused = true)]
async fn a_sweep_spares_a_record_that_is_used_again_meanwhile() {
    let storage = Storage::memory();
    let queue = reports(&storage).await;
    queue.send(&may()).unique_for(HOUR).await.unwrap();
    sleep(HOUR * 24 * 3).await;
    let faulty = Faulty::new(&storage);
    faulty.plan(Operation::ListBlobs, 4, Fault::DelayAfter(Duration::from_secs(10)));
    let flaky = faulty.storage();
    let sweeping = tokio::spawn(async move { sweep(&flaky, SweepOptions::new()).await.unwrap() });
    sleep(Duration::from_secs(5)).await;
    assert!(queue.send(&may()).unique_for(HOUR).await.unwrap().is_sent());
    let swept = sweeping.await.unwrap();
    assert_eq!(swept.seen, 1);
    assert_eq!(swept.removed, 0);
    assert_eq!(swept.failed, 0);
    assert!(!queue.send(&may()).unique_for(HOUR).await.unwrap().is_sent());
}

#[tokio::test(start_paused = true)]
async fn a_sweep_counts_records_that_it_could_not_remove() {
    let faulty = Faulty::new(&Storage::memory());
    let storage = faulty.storage();
    let queue = reports(&storage).await;
    queue.send(&may()).unique_for(HOUR).await.unwrap();
    sleep(HOUR * 24 * 3).await;
    let options = || SweepOptions::new();
    for (operation, fault) in [
        (Operation::AcquireLease, Fault::Refuse(StoreErrorKind::LeaseAlreadyPresent)),
        (Operation::BlobProperties, Fault::Refuse(StoreErrorKind::Unavailable)),
        (Operation::DeleteBlob, Fault::Refuse(StoreErrorKind::Unavailable)),
    ] {
        faulty.plan(operation, 1, fault);
        let swept = sweep(&storage, options()).await.unwrap();
        assert_eq!(swept.seen, 1, "{operation:?}");
        assert_eq!(swept.removed, 0, "{operation:?}");
        assert_eq!(swept.failed, 1, "{operation:?}");
        // The lease of a sweep that stopped in the middle.
        sleep(Duration::from_secs(20)).await;
    }
    assert_eq!(sweep(&storage, options()).await.unwrap().removed, 1);
}

/// Senders wait for a sweep that has leased the record, also for one that died.
#[tokio::test(start_paused = true)]
async fn a_sender_waits_for_a_sweep_that_holds_the_record() {
    let storage = Storage::memory();
    let queue = reports(&storage).await;
    queue.send(&may()).unique_for(HOUR).await.unwrap();
    sleep(HOUR * 24 * 3).await;
    let faulty = Faulty::new(&storage);
    faulty.plan_always(Operation::BlobProperties, Fault::Hang);
    let flaky = faulty.storage();
    let swept = timeout(Duration::from_secs(5), sweep(&flaky, SweepOptions::new())).await;
    assert!(swept.is_err(), "the sweep was to die");
    assert!(queue.send(&may()).unique_for(HOUR).await.unwrap().is_sent());
}

async fn delayed(queue: &Queue<Report>) -> SendUniqueOutcome {
    queue.send(&may()).unique_for(HOUR * 24).delay(HOUR).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn delayed_job_is_rescheduled_by_its_key() {
    let storage = Storage::memory();
    let (queue, other) = (reports(&storage).await, reports(&storage).await);
    assert!(!other.cancel_unique("may").await.unwrap(), "nothing was ever sent");
    let first = delayed(&queue).await;
    assert!(!other.cancel_unique("june").await.unwrap(), "nothing was sent under this key");
    // From another process.
    assert!(other.cancel_unique("may").await.unwrap());
    assert!(queue.is_empty().await.unwrap() && !queue.cancel_unique("may").await.unwrap());
    // The key is free, within the window of what was cancelled.
    let second = delayed(&queue).await;
    assert!(second.is_sent() && second.id() != first.id());
    sleep(HOUR + Duration::from_secs(1)).await;
    assert_eq!(sent(&queue).await, [second.id()]);
    assert!(!other.cancel_unique("may").await.unwrap(), "it was received");
    // The window of a received job continues.
    assert!(!delayed(&queue).await.is_sent());
    // What was cancelled by its sender leaves its key free too.
    let third = queue.send(&may()).key("june").unique_for(HOUR).delay(HOUR).await.unwrap();
    let SendUniqueOutcome::Sent(third) = third else { panic!("{third:?}") };
    assert!(queue.cancel(&third).await.unwrap() && !queue.cancel(&third).await.unwrap());
    assert!(queue.send(&may()).key("june").unique_for(HOUR).await.unwrap().is_sent());
}

#[tokio::test(start_paused = true)]
async fn received_job_is_not_cancelled_even_once_released() {
    let storage = Storage::memory();
    let queue = reports(&storage).await;
    assert!(queue.send(&may()).unique_for(HOUR).await.unwrap().is_sent());
    let delivery = queue.receive(Duration::ZERO).await.unwrap().unwrap();
    assert!(!queue.cancel_unique("may").await.unwrap());
    delivery.release(Duration::ZERO).await.unwrap();
    assert!(!queue.cancel_unique("may").await.unwrap());
    assert_eq!(sent(&queue).await.len(), 1);
}

/// Checks that a sender who joined a job joined one that exists.
// I12b
#[tokio::test(start_paused = true)]
async fn crash_at_any_step_of_a_cancel_loses_no_job() {
    use Operation as O;
    let lost = Fault::DropAnswer(StoreErrorKind::Timeout);
    let unsent = Fault::LoseRequest(StoreErrorKind::Timeout);
    for (operation, nth, fault) in [
        (O::PutBlob, 1, Fault::Hang),
        (O::PutBlob, 1, Fault::HangAfter),
        (O::PutBlob, 1, lost),
        (O::Delete, 1, Fault::Hang),
        (O::Delete, 1, Fault::HangAfter),
        (O::Delete, 1, lost),
        (O::Delete, 1, unsent),
        (O::Delete, 1, Fault::Refuse(StoreErrorKind::Unauthorized)),
        (O::PutBlob, 2, Fault::Hang),
        (O::PutBlob, 2, Fault::HangAfter),
    ] {
        let at = format!("{operation:?} {nth}: {fault:?}");
        let storage = Storage::memory();
        let queue = reports(&storage).await;
        let first = delayed(&queue).await;
        let faulty = Faulty::new(&storage);
        faulty.plan(operation, nth, fault);
        let cancelled =
            timeout(Duration::from_secs(20), reports(&faulty.storage()).await.cancel_unique("may")).await;
        let left = queue.approximate_len().await.unwrap();
        if let Ok(Ok(cancelled)) = &cancelled {
            assert_eq!(*cancelled, left == 0, "{at}: it says what is not so");
        }
        // It is held for 45 seconds at most.
        let next = timeout(Duration::from_secs(60), delayed(&queue)).await.expect(&at);
        assert!(next.is_sent() || (next.id() == first.id() && left == 1), "{at}: joined what is not there");
        sleep(HOUR * 2).await;
        let mut ids = sent(&queue).await;
        ids.dedup();
        assert_eq!(ids, [next.id()], "{at}: all copies are one job");
    }
}

#[tokio::test(start_paused = true)]
async fn key_held_by_a_canceller_that_died_is_cancelled_by_the_next() {
    let storage = Storage::memory();
    let queue = reports(&storage).await;
    delayed(&queue).await;
    let faulty = Faulty::new(&storage);
    faulty.plan(Operation::PutBlob, 1, Fault::HangAfter);
    let doomed = reports(&faulty.storage()).await;
    assert!(timeout(Duration::from_secs(20), doomed.cancel_unique("may")).await.is_err());
    assert!(queue.cancel_unique("may").await.unwrap_err().is_retryable(), "it is held for a while");
    sleep(Duration::from_secs(60)).await;
    assert!(queue.cancel_unique("may").await.unwrap());
    assert!(queue.is_empty().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn unanswered_deletion_is_retried_and_doubt_reported() {
    const LOST: Fault = Fault::DropAnswer(StoreErrorKind::Timeout);
    const UNSENT: Fault = Fault::LoseRequest(StoreErrorKind::Timeout);
    const REFUSED: Fault = Fault::Refuse(StoreErrorKind::Unauthorized);
    // What becomes of the deletions, whether it is told that the job is taken back, and how often it was asked for.
    let cases: [(&[Fault], Option<bool>, usize); 6] = [
        (&[LOST], Some(true), 2),
        (&[UNSENT, LOST], Some(true), 3),
        (&[UNSENT, UNSENT, UNSENT], None, 3),
        (&[REFUSED], None, 1),
        (&[UNSENT, REFUSED], None, 2),
        (&[LOST, REFUSED], None, 2),
    ];
    for (faults, told, asked) in cases {
        let storage = Storage::memory();
        let queue = reports(&storage).await;
        let first = delayed(&queue).await;
        let faulty = Faulty::new(&storage);
        for (nth, fault) in (1..).zip(faults) {
            faulty.plan(Operation::Delete, nth, *fault);
        }
        let cancelled = reports(&faulty.storage()).await.cancel_unique("may").await;
        assert_eq!(cancelled.ok(), told, "{faults:?}");
        assert_eq!(faulty.calls_of(Operation::Delete), asked, "{faults:?}");
        // The next sender joins only a job that certainly exists.
        let next = delayed(&queue).await;
        let certain = faults == [REFUSED];
        assert_eq!(next.is_sent(), !certain, "{faults:?}");
        assert_eq!(next.id() == first.id(), told.is_none(), "{faults:?}");
        assert!(!queue.is_empty().await.unwrap(), "{faults:?}");
    }
}

/// The sender that died may have stored a message under the same id, which is not the one that the other knows of.
// B24, D5
#[tokio::test(start_paused = true)]
async fn a_job_taken_over_from_a_dead_sender_is_not_certainly_cancelled() {
    for by_key in [false, true] {
        let storage = Storage::memory();
        let queue = reports(&storage).await;
        queue.send(&Report { of: "april".into() }).unique_for(HOUR).await.unwrap();
        assert_eq!(sent(&queue).await.len(), 1);
        let faulty = Faulty::new(&storage);
        let doomed = reports(&faulty.storage()).await;
        // It has claimed the key and stored its message, and dies before it records that.
        let writes = death::at_write(&faulty, 2, true);
        let report = may();
        let send = doomed.send(&report).unique_for(HOUR * 24).delay(HOUR);
        assert!(timeout(Duration::from_secs(1), send).await.is_err());
        assert_eq!(writes.count(), 2);
        let outcome = timeout(Duration::from_secs(60), delayed(&queue)).await.unwrap();
        let jobqueue::queue::SendUniqueOutcome::Sent(taken_over) = outcome else { panic!("{outcome:?}") };
        let cancelled = match by_key {
            true => queue.cancel_unique("may").await,
            false => queue.cancel(&taken_over).await,
        };
        assert!(cancelled.unwrap_err().is_outcome_unknown(), "by key: {by_key}");
        sleep(HOUR + Duration::from_secs(1)).await;
        assert_eq!(sent(&queue).await, [taken_over.id().to_owned()], "the copy of the one that died runs");
    }
}

/// Of a canceller and a receiver at the same time exactly one wins.
#[tokio::test(start_paused = true)]
async fn of_many_cancellers_one_takes_the_job_back() {
    let storage = Storage::memory();
    let queue = reports(&storage).await;
    delayed(&queue).await;
    let all = futures_util::future::join_all((0..10).map(|_| queue.cancel_unique("may"))).await;
    let told = all.into_iter().map(|one| one.map_err(|error| assert!(error.is_retryable(), "{error}")));
    assert_eq!(told.filter(|one| *one == Ok(true)).count(), 1);
    assert!(queue.is_empty().await.unwrap());
}

/// The receipt of the first put deletes on every storage until the message is received.
#[tokio::test]
async fn unique_work_is_cancelled_on_sqlite_on_shards_and_on_azurite() {
    let folder = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", folder.path().join("jobs.db").display());
    let azurite = jobqueue_tests::azurite::Azurite::shared().connection_string();
    let accounts = [Storage::memory(), Storage::memory()];
    let sharded = jobqueue::sharded::Sharded::builder().shards("reports", 4);
    let sharded = sharded.account("a", accounts[0].clone()).account("b", accounts[1].clone());
    for storage in [
        Storage::connect(&file).await.unwrap(),
        Storage::connect(&azurite).await.unwrap(),
        Storage::from(sharded.build().unwrap().stores()),
    ] {
        let at = storage.description().to_owned();
        let queue = storage.queue::<Report>().await.unwrap();
        delayed(&queue).await;
        assert!(queue.cancel_unique("may").await.unwrap(), "{at}");
        assert!(queue.is_empty().await.unwrap(), "{at}");
        assert!(queue.send(&may()).unique_for(HOUR).await.unwrap().is_sent(), "{at}");
        let delivery = queue.receive(Duration::from_secs(60)).await.unwrap().expect(&at);
        assert!(!queue.cancel_unique("may").await.unwrap(), "{at}: it was received");
        delivery.complete().await.unwrap();
        assert!(!queue.cancel_unique("may").await.unwrap(), "{at}: it is done");
    }
}
