//! The cancellation of unique work by its key, whoever dies and whichever answer is lost meanwhile. In paused
//! time on memory.

use std::time::Duration;

use jobqueue::maintenance::{SweepOptions, sweep};
use jobqueue::queue::SendUniqueOutcome;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{Queue, SendOptions, Sent, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::death;
use tokio::time::{sleep, timeout};

use super::unique::{HOUR, MINUTE, Report, delayed, may, reports, sent};

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

/// Checks that a sender who joined a job joined one that exists, also if the cancellation is repeated before.
// I12b
#[tokio::test(start_paused = true)]
async fn crash_at_any_step_of_a_cancel_loses_no_job() {
    use Operation as O;
    let lost = Fault::DropAnswer(StoreErrorKind::Timeout);
    let unsent = Fault::LoseRequest(StoreErrorKind::Timeout);
    for ((operation, nth, fault), repeated) in [
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
    ]
    .into_iter()
    .flat_map(|step| [(step, false), (step, true)])
    {
        let at = format!("{operation:?} {nth}: {fault:?}, repeated: {repeated}");
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
        if repeated {
            sleep(Duration::from_secs(60)).await;
            let is_over = matches!(cancelled, Ok(Ok(true)))
                || (operation, nth, fault) == (O::PutBlob, 2, Fault::HangAfter);
            assert_eq!(queue.cancel_unique("may").await.expect(&at), !is_over, "{at}");
            let next = delayed(&queue).await;
            assert!(next.is_sent() && next.id() != first.id(), "{at}: the key is free");
            sleep(HOUR * 2).await;
            assert_eq!(sent(&queue).await, [next.id()], "{at}");
            continue;
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
    let cancelled = timeout(Duration::from_secs(60), queue.cancel_unique("may")).await;
    assert!(cancelled.expect("it is held for a while").unwrap());
    assert!(queue.is_empty().await.unwrap());
}

/// A message that is not there was deleted by the canceller that died, or received since: only its delay says
/// which.
#[tokio::test(start_paused = true)]
async fn repeated_cancel_of_a_due_job_frees_and_keeps_no_key_in_doubt() {
    for (is_deleted, is_completed) in [(true, false), (false, false), (false, true)] {
        let at = format!("deleted: {is_deleted}, completed: {is_completed}");
        let storage = Storage::memory();
        let queue = reports(&storage).await;
        let first = delayed(&queue).await;
        let faulty = Faulty::new(&storage);
        faulty.plan(Operation::Delete, 1, if is_deleted { Fault::HangAfter } else { Fault::Hang });
        let doomed = reports(&faulty.storage()).await;
        assert!(timeout(Duration::from_secs(20), doomed.cancel_unique("may")).await.is_err(), "{at}");
        sleep(HOUR).await;
        let delivery = queue.receive(Duration::ZERO).await.unwrap();
        assert_eq!(delivery.is_none(), is_deleted, "{at}");
        if is_completed {
            delivery.expect(&at).complete().await.unwrap();
        }
        let is_there = !is_deleted && !is_completed;
        for _ in 0..2 {
            let again = queue.cancel_unique("may").await;
            match again {
                Ok(cancelled) => assert!(is_there && !cancelled, "{at}"),
                Err(error) => assert!(!is_there && error.is_outcome_unknown(), "{at}: {error}"),
            }
            sleep(Duration::from_secs(60)).await;
        }
        let next = delayed(&queue).await;
        assert_eq!(next.is_sent(), !is_there, "{at}");
        assert_eq!(next.id(), first.id(), "{at}");
    }
}

/// Of a canceller whose deletion was applied and then refused, the next one has the answer.
#[tokio::test(start_paused = true)]
async fn cancel_without_an_answer_is_answered_by_the_next() {
    let storage = Storage::memory();
    let queue = reports(&storage).await;
    let first = delayed(&queue).await;
    let faulty = Faulty::new(&storage);
    faulty.plan(Operation::Delete, 1, Fault::DropAnswer(StoreErrorKind::Timeout));
    faulty.plan(Operation::Delete, 2, Fault::Refuse(StoreErrorKind::Unauthorized));
    faulty.plan(Operation::Delete, 3, Fault::Refuse(StoreErrorKind::Unauthorized));
    let canceller = reports(&faulty.storage()).await;
    for _ in 0..2 {
        assert!(canceller.cancel_unique("may").await.unwrap_err().is_outcome_unknown());
        sleep(Duration::from_secs(60)).await;
    }
    assert!(canceller.cancel_unique("may").await.unwrap());
    let next = delayed(&queue).await;
    assert!(next.is_sent() && next.id() != first.id());
}

#[tokio::test(start_paused = true)]
async fn unanswered_deletion_is_retried_and_doubt_reported() {
    const LOST: Fault = Fault::DropAnswer(StoreErrorKind::Timeout);
    const UNSENT: Fault = Fault::LoseRequest(StoreErrorKind::Timeout);
    const REFUSED: Fault = Fault::Refuse(StoreErrorKind::Unauthorized);
    // What becomes of the deletions, whether it is told that the job is taken back, and how often it was
    // asked for.
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

/// The sender that died may have stored a message under the same id, which is not the one that the other
/// knows of.
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
        let SendUniqueOutcome::Sent(taken_over) = outcome else { panic!("{outcome:?}") };
        let cancelled = match by_key {
            true => queue.cancel_unique("may").await,
            false => queue.cancel(&taken_over).await,
        };
        assert!(cancelled.unwrap_err().is_outcome_unknown(), "by key: {by_key}");
        sleep(HOUR + Duration::from_secs(1)).await;
        assert_eq!(sent(&queue).await, [taken_over.id().to_owned()], "the copy of the one that died runs");
    }
}

/// Sends the job of May in two windows that are shorter than its delay, both times under `id` if it is given.
async fn sent_in_two_windows(queue: &Queue<Report>, id: Option<&str>) -> [Sent; 2] {
    let mut sent = Vec::new();
    for _ in 0..2 {
        let options = id.into_iter().fold(SendOptions::new().delay(HOUR), |options, id| options.id(id));
        let outcome = queue.send(&may()).unique_for(MINUTE).with(options).await.unwrap();
        let SendUniqueOutcome::Sent(one) = outcome else { panic!("{outcome:?}") };
        sent.push(one);
        sleep(MINUTE / 2 * 3).await;
    }
    sent.try_into().unwrap()
}

/// Each window has a message of its own, and the record names the last one.
// audit 33, sending B1: the message of the second window was deleted, and that of the first one ran.
#[tokio::test(start_paused = true)]
async fn cancel_of_an_id_that_two_windows_used_deletes_its_own_message() {
    for nth in [0, 1] {
        let storage = Storage::memory();
        let queue = reports(&storage).await;
        let both = sent_in_two_windows(&queue, Some("sync-4711")).await;
        let cancelled = queue.cancel(&both[nth]).await;
        assert!(cancelled.unwrap_err().is_outcome_unknown(), "{nth}: the other message runs");
        assert_eq!(queue.approximate_len().await.unwrap(), 1, "{nth}");
        sleep(HOUR - MINUTE * 2).await;
        let runs_first = queue.receive(Duration::ZERO).await.unwrap();
        assert_eq!(runs_first.is_some(), nth == 1, "{nth}: the first message is due");
    }
}

// audit 33, sending B1: it said true, and the message of the first window ran.
#[tokio::test(start_paused = true)]
async fn cancel_by_key_of_an_id_that_two_windows_used_is_in_doubt() {
    let queue = reports(&Storage::memory()).await;
    sent_in_two_windows(&queue, Some("sync-4711")).await;
    assert!(queue.cancel_unique("may").await.unwrap_err().is_outcome_unknown());
    sleep(HOUR).await;
    assert_eq!(sent(&queue).await, ["sync-4711"]);
}

/// With ids of their own the messages of two windows are two jobs.
#[tokio::test(start_paused = true)]
async fn jobs_of_two_windows_are_cancelled_each_by_itself() {
    let queue = reports(&Storage::memory()).await;
    let [first, second] = sent_in_two_windows(&queue, None).await;
    assert!(queue.cancel(&first).await.unwrap());
    assert!(queue.cancel(&second).await.unwrap());
    let [first, _] = sent_in_two_windows(&queue, None).await;
    assert!(queue.cancel_unique("may").await.unwrap());
    sleep(HOUR).await;
    assert_eq!(sent(&queue).await, [first.id()]);
}

/// The first sender stores its message and cannot record that. The second one takes its key over, stores
/// another message of the job, and dies.
async fn unrecorded_and_sent_again(storage: &Storage) -> Sent {
    let report = may();
    let send = async |storage: &Storage| {
        let queue = reports(storage).await;
        queue.send(&report).unique_for(HOUR).delay(HOUR * 24 * 5).await
    };
    let faulty = Faulty::new(storage);
    let puts = faulty.clone();
    let refused = Fault::Refuse(StoreErrorKind::Unavailable);
    faulty.on(Operation::PutBlob, move |_| (puts.calls_of(Operation::Put) > 0).then_some(refused));
    let outcome = send(&faulty.storage()).await.unwrap();
    let SendUniqueOutcome::Sent(first) = outcome else { panic!("{outcome:?}") };
    let faulty = Faulty::new(storage);
    faulty.plan(Operation::Put, 1, Fault::HangAfter);
    assert!(timeout(MINUTE, send(&faulty.storage())).await.is_err());
    first
}

// audit 33, sending C2: it said true, and the message of the second sender ran.
#[tokio::test(start_paused = true)]
async fn cancel_of_a_send_that_could_not_be_recorded_is_in_doubt() {
    for is_record_swept in [false, true] {
        let at = format!("the record is swept: {is_record_swept}");
        let storage = Storage::memory();
        let queue = reports(&storage).await;
        let first = unrecorded_and_sent_again(&storage).await;
        assert_eq!(queue.approximate_len().await.unwrap(), 2, "{at}");
        if is_record_swept {
            sleep(HOUR * 24 * 3).await;
            assert_eq!(sweep(&storage, SweepOptions::new()).await.unwrap().removed, 1);
        }
        assert!(queue.cancel(&first).await.unwrap_err().is_outcome_unknown(), "{at}");
        assert_eq!(queue.approximate_len().await.unwrap(), 1, "{at}: the other message waits");
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
