//! On memory and its shards, in paused time, with failures, faults, dead letters and cancellations.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::sharded::Sharded;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{ErrorKind, Reason, SendOptions, Storage};
use jobqueue_testing::faults::{AzureLike, Fault, Faulty};
use jobqueue_tests::jobs::worker;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::order::{Step, Watch, handle, keep_running, logged, opened, send, step};

fn sharded(accounts: &[Storage]) -> Storage {
    let mut builder = Sharded::builder().shards("steps", 4);
    for (number, account) in accounts.iter().enumerate() {
        builder = builder.account(format!("a{number}"), account.clone());
    }
    Storage::from(builder.build().unwrap().stores())
}

/// Loses answers, breaks connections and throttles, as a busy Azure Storage account does.
fn faults(storage: &Storage, seed: u64) -> Storage {
    Faulty::with_profile(storage, AzureLike::seeded(seed).faults(0.05)).storage()
}

const KEYS: u32 = 5;
const STEPS: u32 = 12;

async fn keeps_order(seed: u64, faulty: bool) {
    println!("seed {seed}, faults {faulty}");
    let accounts = [logged(), logged()];
    let open = |number: u64| {
        let storage = sharded(&accounts);
        if faulty { faults(&storage, seed * 10 + number) } else { storage }
    };
    let watch = Watch::default();
    let (stop, stopped) = tokio::sync::watch::channel(());
    let run = |number| {
        let (storage, watch) = (open(number), watch.clone());
        let build =
            move || worker(&storage).concurrency(8).state(watch.clone()).handle(handle).build().unwrap();
        tokio::spawn(keep_running(build, stopped.clone()))
    };
    let workers: Vec<_> = (0..3).map(run).collect();

    let storage = open(9);
    let queue = opened(&storage).await;
    let mut random = StdRng::seed_from_u64(seed);
    for number in 0..STEPS {
        for key in 0..KEYS {
            // A dead letter that cannot be stored at once is tried again, behind the others.
            let fails = [0, 0, 0, 1, 2, if faulty { 0 } else { 3 }][random.random_range(0..6)];
            let step = Step { of: key.to_string(), number, fails, millis: random.random_range(1..3000) };
            let id = format!("{key}-{number}");
            let options = || SendOptions::new().in_order().id(id.clone());
            // As the documentation says: again, under the same id.
            while let Err(error) = queue.send(&step).with(options()).await {
                assert!(faulty && error.kind() != ErrorKind::Invalid, "{error:?}");
            }
        }
    }
    watch.ends((KEYS * STEPS) as usize).await;
    // A message that is delivered again because its deletion was lost does not run again.
    tokio::time::sleep(Duration::from_secs(120)).await;
    stop.send(()).unwrap();
    for worker in workers {
        worker.await.unwrap();
    }
    watch.assert_in_order(KEYS, STEPS);
    let first = &accounts[0];
    assert!(first.queue::<Step>().await.unwrap().is_empty().await.unwrap());
}

// I21
#[tokio::test(start_paused = true)]
async fn messages_of_a_key_run_in_send_order_despite_failures() {
    for seed in 0..4 {
        keeps_order(seed, false).await;
    }
}

#[tokio::test(start_paused = true)]
async fn order_survives_lost_answers_lost_requests_and_throttling() {
    for seed in 0..6 {
        keeps_order(seed, true).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_failing_job_holds_back_its_key_and_no_other() {
    let storage = sharded(&[logged()]);
    let queue = storage.queue::<Step>().await.unwrap();
    send(&queue, &Step { fails: 3, ..step("a", 0) }).await;
    for number in 1..4 {
        send(&queue, &step("a", number)).await;
        send(&queue, &step("b", number)).await;
    }
    let watch = Watch::default();
    let (seen, order) = (watch.clone(), Arc::new(Mutex::new(Vec::new())));
    let log = Arc::clone(&order);
    let worker = worker(&storage).concurrency(2).state(watch.clone()).handle(handle);
    let worker = worker.on_event(move |event| {
        if let jobqueue::Event::Finished { job: Some(job), outcome, .. } = event {
            log.lock().unwrap().push(format!("{} {}", job.key.as_deref().unwrap(), outcome.as_str()));
        }
    });
    let _ = worker.build().unwrap().run_until(async move { seen.ends(7).await }).await.unwrap();
    assert_eq!(watch.begun("a"), [0, 0, 0, 1, 2, 3]);
    assert_eq!(watch.begun("b"), [1, 2, 3]);
    let order = order.lock().unwrap().clone();
    let place = |what: &str| order.iter().position(|line| line == what).unwrap();
    assert!(place("b completed") < place("a dead_lettered"), "{order:?}");
    assert!(place("a dead_lettered") < place("a completed"), "{order:?}");

    // Put back, it is the last of its key, whatever it was before.
    send(&queue, &step("a", 4)).await;
    let _ = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
    let watch = Watch::default();
    let seen = watch.clone();
    let worker = jobqueue_tests::jobs::worker(&storage).state(watch.clone()).handle(handle);
    let _ = worker.build().unwrap().run_until(async move { seen.ends(2).await }).await.unwrap();
    assert_eq!(watch.begun("a"), [4, 0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn key_waits_for_delayed_but_not_cancelled_messages() {
    let storage = logged();
    let queue = storage.queue::<Step>().await.unwrap();
    let watch = Watch::default();
    let run = |ends: usize| {
        let seen = watch.clone();
        let worker = worker(&storage).state(watch.clone()).handle(handle).build().unwrap();
        let ended = worker.run_until(async move { seen.ends(ends).await });
        async {
            tokio::time::timeout(Duration::from_secs(7_200), ended).await.expect("nothing is waited for")
        }
    };
    let later = SendOptions::new().in_order().delay(Duration::from_secs(3600));
    queue.send(&step("a", 0)).with(later.clone()).await.unwrap();
    send(&queue, &step("a", 1)).await;
    let _ = run(2).await.unwrap();
    assert_eq!(watch.begun("a"), [0, 1], "a delay holds back its key");

    let sent = queue.send(&step("a", 2)).with(later.clone()).await.unwrap();
    send(&queue, &step("a", 3)).await;
    assert!(queue.cancel(&sent).await.unwrap());
    let _ = run(3).await.unwrap();
    assert_eq!(watch.begun("a"), [0, 1, 3], "what was taken back is not waited for");

    queue.send(&step("a", 4)).with(later).await.unwrap();
    queue.clear().await.unwrap();
    send(&queue, &step("a", 5)).await;
    let _ = run(4).await.unwrap();
    assert_eq!(watch.begun("a"), [0, 1, 3, 5], "what was cleared away is not waited for");
}

#[tokio::test(start_paused = true)]
async fn unique_work_cancelled_by_key_gives_up_its_position() {
    let storage = logged();
    let queue = storage.queue::<Step>().await.unwrap();
    let watch = Watch::default();
    let later = SendOptions::new().in_order().delay(Duration::from_secs(3600));
    assert!(
        queue
            .send(&step("a", 0))
            .unique_for(Duration::from_secs(86_400))
            .with(later)
            .await
            .unwrap()
            .is_sent()
    );
    send(&queue, &step("a", 1)).await;
    assert!(queue.cancel_unique("a").await.unwrap());
    let seen = watch.clone();
    let worker = worker(&storage).state(watch.clone()).handle(handle).build().unwrap();
    let ended = worker.run_until(async move { seen.ends(1).await });
    let _ = tokio::time::timeout(Duration::from_secs(86_400), ended)
        .await
        .expect("nothing is waited for")
        .unwrap();
    assert_eq!(watch.begun("a"), [1]);
}

/// At each of this many writes and at the deletion, reached or not: a death, a lost answer, a lost request, a
/// refusal.
fn deaths(writes: u64) -> Vec<(Operation, u64, Fault)> {
    let steps = (1..=writes).map(|nth| (Operation::PutBlob, nth)).chain([(Operation::Delete, 1)]);
    let faults = [
        Fault::Hang,
        Fault::HangAfter,
        Fault::DropAnswer(StoreErrorKind::Timeout),
        Fault::LoseRequest(StoreErrorKind::Timeout),
        Fault::Refuse(StoreErrorKind::Unauthorized),
    ];
    steps.flat_map(|(operation, nth)| faults.map(|fault| (operation, nth, fault))).collect()
}

// I12b
#[tokio::test(start_paused = true)]
async fn crash_at_any_step_of_a_cancel_blocks_no_key() {
    for ((operation, nth, fault), repeated) in
        deaths(2).into_iter().flat_map(|step| [(step, false), (step, true)])
    {
        let at = format!("{operation:?} {nth}: {fault:?}, repeated: {repeated}");
        let storage = logged();
        let queue = storage.queue::<Step>().await.unwrap();
        let later = SendOptions::new().in_order().delay(Duration::from_secs(86_400));
        let sent = queue.send(&step("a", 0)).with(later).await.unwrap();
        send(&queue, &step("a", 1)).await;
        send(&queue, &step("b", 0)).await;

        let faulty = Faulty::new(&storage);
        let doomed = faulty.storage().queue::<Step>().await.unwrap();
        faulty.plan(operation, nth, fault);
        let told = tokio::time::timeout(Duration::from_secs(20), doomed.cancel(&sent)).await;
        if let Ok(Ok(taken)) = &told {
            assert_eq!(*taken, queue.approximate_len().await.unwrap() == 2, "{at}: it says what is not so");
        }
        let refused = matches!(fault, Fault::Refuse(_));
        assert!(!refused || nth > 1 || matches!(told, Ok(Err(_))), "{at}: a refusal is told");
        let again = if repeated { Some(queue.cancel(&sent).await.expect(&at)) } else { None };
        let (watch, began) = (Watch::default(), tokio::time::Instant::now());
        let worker = worker(&storage).state(watch.clone()).handle(handle).build().unwrap();
        let _ = worker.run_until(watch.ends(2)).await.unwrap();
        let (ran, took) = (watch.begun("a"), began.elapsed());
        // Only a job that was not cancelled is waited for, because it is sent for a day later.
        let cancelled = ran == [1] && took < Duration::from_secs(100);
        assert_eq!(watch.begun("b"), [0], "{at}");
        if again.is_some() {
            assert!(cancelled, "{at}: {again:?}, {ran:?} after {took:?}");
            assert_eq!(again, Some(true), "{at}: {told:?}");
            continue;
        }
        let kept = ran.first() == Some(&0);
        assert!(cancelled || (kept && !matches!(told, Ok(Ok(true)))), "{at}: {ran:?} after {took:?}");
        let marked = operation == Operation::Delete || nth > 1 || fault == Fault::HangAfter;
        assert!(cancelled || !marked || refused, "{at}: the next of the key was to finish it");
        assert!(operation != Operation::Delete || !refused || kept, "{at}: what is refused stays");
    }
}

// I12b
#[tokio::test(start_paused = true)]
async fn unanswered_cancel_is_completed_by_the_next_of_the_key() {
    let storage = logged();
    let queue = storage.queue::<Step>().await.unwrap();
    let later = SendOptions::new().in_order().delay(Duration::from_secs(86_400));
    let sent = queue.send(&step("a", 0)).with(later).await.unwrap();
    send(&queue, &step("a", 1)).await;
    let faulty = Faulty::new(&storage);
    faulty.plan_always(Operation::Delete, Fault::LoseRequest(StoreErrorKind::Timeout));
    let doomed = faulty.storage().queue::<Step>().await.unwrap();
    assert!(doomed.cancel(&sent).await.unwrap_err().is_retryable());
    assert_eq!(queue.approximate_len().await.unwrap(), 2, "no request arrived");
    let (watch, began) = (Watch::default(), tokio::time::Instant::now());
    // What fails once is tried again.
    let faulty = Faulty::new(&storage);
    faulty.plan(Operation::Delete, 1, Fault::Refuse(StoreErrorKind::Unavailable));
    let worker = worker(&faulty.storage()).state(watch.clone()).handle(handle).build().unwrap();
    let _ = worker.run_until(watch.ends(1)).await.unwrap();
    assert_eq!(faulty.calls_of(Operation::Delete), 2);
    assert!(watch.begun("a") == [1] && began.elapsed() < Duration::from_secs(100), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn received_message_keeps_its_position_after_a_cancel() {
    let storage = logged();
    let queue = storage.queue::<Step>().await.unwrap();
    let sent = queue.send(&step("a", 0)).in_order().await.unwrap();
    send(&queue, &step("a", 1)).await;
    let faulty = Faulty::new(&storage);
    faulty.plan(Operation::Delete, 1, Fault::Hang);
    let doomed = faulty.storage().queue::<Step>().await.unwrap();
    let cancelled = tokio::time::timeout(Duration::from_secs(20), doomed.cancel(&sent)).await;
    assert!(cancelled.is_err(), "it was to die");
    let delivery = queue.receive(Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(&*delivery.info().id, sent.id());
    let watch = Watch::default();
    let worker = worker(&storage).state(watch.clone()).handle(handle).build().unwrap();
    let worker = tokio::spawn(worker.run_until({
        let watch = watch.clone();
        async move { watch.ends(2).await }
    }));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(watch.begun("a"), [0; 0], "the first of the key is not done");
    delivery.release(Duration::ZERO).await.unwrap();
    let _ = worker.await.unwrap().unwrap();
    assert_eq!(watch.begun("a"), [0, 1]);
}

// review 23, last B1
#[tokio::test(start_paused = true)]
async fn cancel_that_is_refused_late_does_not_deny_its_completion() {
    let storage = logged();
    let queue = storage.queue::<Step>().await.unwrap();
    let later = SendOptions::new().in_order().delay(Duration::from_secs(86_400));
    let sent = queue.send(&step("a", 0)).with(later).await.unwrap();
    send(&queue, &step("a", 1)).await;
    let faulty = Faulty::new(&storage);
    let slow = faulty.storage().queue::<Step>().await.unwrap();
    // The mark is written at once, and its writer goes on after two minutes.
    faulty.plan(Operation::PutBlob, 1, Fault::DelayAfter(Duration::from_secs(120)));
    faulty.plan(Operation::Delete, 1, Fault::Refuse(StoreErrorKind::Unauthorized));
    let cancelling = tokio::spawn(async move { slow.cancel(&sent).await });
    let watch = Watch::default();
    let worker = worker(&storage).state(watch.clone()).handle(handle).build().unwrap();
    let _ = worker.run_until(watch.ends(1)).await.unwrap();
    assert_eq!(watch.begun("a"), [1], "the next of the key completes the cancellation");
    assert!(cancelling.await.unwrap().unwrap(), "it says so");
}

/// The next sender sends under the same id, because the outcome of the first send is unknown.
// I12b
#[tokio::test(start_paused = true)]
async fn unique_ordered_work_survives_a_crashed_cancel() {
    const DAY: Duration = Duration::from_secs(86_400);
    for ((operation, nth, fault), repeated) in
        deaths(4).into_iter().flat_map(|step| [(step, false), (step, true)])
    {
        let at = format!("{operation:?} {nth}: {fault:?}, repeated: {repeated}");
        let storage = logged();
        let queue = storage.queue::<Step>().await.unwrap();
        let later = || SendOptions::new().in_order().delay(Duration::from_secs(3600));
        assert!(queue.send(&step("a", 0)).unique_for(DAY).with(later()).await.unwrap().is_sent());

        let faulty = Faulty::new(&storage);
        let doomed = faulty.storage().queue::<Step>().await.unwrap();
        faulty.plan(operation, nth, fault);
        let told = tokio::time::timeout(Duration::from_secs(20), doomed.cancel_unique("a")).await;
        if repeated {
            tokio::time::sleep(Duration::from_secs(60)).await;
            let again = queue.cancel_unique("a").await.expect(&at);
            // The first one may have come to its end.
            let is_over = matches!(told, Ok(Ok(true)))
                || (operation, nth, fault) == (Operation::PutBlob, 4, Fault::HangAfter);
            assert!(again || is_over, "{at}: {told:?}");
        }
        let next = queue.send(&step("a", 1)).unique_for(DAY).with(later()).await.expect(&at);
        assert!(!repeated || next.is_sent(), "{at}");
        if let Ok(Ok(taken)) = &told {
            assert_eq!(*taken, next.is_sent(), "{at}");
        }
        let watch = Watch::default();
        let worker = worker(&storage).state(watch.clone()).handle(handle).build().unwrap();
        let ended = worker.run_until(watch.ends(1));
        let _ = tokio::time::timeout(DAY, ended).await.expect(&at).unwrap();
        let ran = watch.begun("a");
        let is_kept = ran == [0] && !repeated && !matches!(told, Ok(Ok(true)));
        assert!(ran == [1] || is_kept, "{at}: {ran:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_order_needs_a_key_and_excludes_a_time_to_live() {
    let storage = logged();
    let queue = storage.queue::<Step>().await.unwrap();
    let no_key = queue.send(&step("", 0)).in_order().await.unwrap_err();
    assert!(no_key.kind() == ErrorKind::Invalid && no_key.to_string().contains("an empty one"), "{no_key}");
    let no_key = queue.send(&step("", 0)).unique_for(Duration::from_secs(60)).await.unwrap_err();
    assert!(no_key.kind() == ErrorKind::Invalid && no_key.to_string().contains("an empty one"), "{no_key}");
    let short = SendOptions::new().in_order().ttl(Duration::from_secs(60));
    let expires = queue.send(&step("a", 0)).with(short).await.unwrap_err();
    assert!(
        expires.kind() == ErrorKind::Invalid && expires.to_string().contains("time to live"),
        "{expires}"
    );
    assert!(queue.is_empty().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn messages_that_are_received_by_hand_hold_nobody_back() {
    let storage = logged();
    let queue = storage.queue::<Step>().await.unwrap();
    for number in 0..3 {
        send(&queue, &step("a", number)).await;
    }
    let receive = async || queue.receive(Duration::ZERO).await.unwrap().unwrap();
    receive().await.complete().await.unwrap();
    receive().await.dead_letter(Reason::REJECTED, "by hand").await.unwrap();
    for _ in 0..3 {
        receive().await.fail(Duration::ZERO, "by hand").await.unwrap();
    }
    send(&queue, &step("a", 3)).await;
    let watch = Watch::default();
    let worker = worker(&storage).state(watch.clone()).handle(handle).build().unwrap();
    let _ = worker.run_until(watch.ends(1)).await.unwrap();
    assert_eq!(watch.begun("a"), [3]);
}
