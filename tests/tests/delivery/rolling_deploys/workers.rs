//! Several workers on virtual time.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::settings::Metadata;
use jobqueue::{Event, JobError, Outcome, Report, Storage, Worker};
use jobqueue_tests::jobs::{after, in_memory, worker};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::messages::{OrderV1, OrderV2, Refund};

pub type Done = Arc<Mutex<BTreeSet<String>>>;

pub fn old(storage: &Storage, done: &Done) -> Worker {
    let sink = Arc::clone(done);
    let handler = move |order: OrderV1| {
        sink.lock().unwrap().insert(order.id);
        async { Ok::<(), JobError>(()) }
    };
    worker(storage).concurrency(16).handle(handler).build().unwrap()
}

pub fn new(storage: &Storage, done: &Done) -> Worker {
    let (orders, refunds) = (Arc::clone(done), Arc::clone(done));
    let order = move |order: OrderV2| {
        orders.lock().unwrap().insert(order.id);
        async { Ok::<(), JobError>(()) }
    };
    let refund = move |refund: Refund| {
        refunds.lock().unwrap().insert(refund.id);
        async { Ok::<(), JobError>(()) }
    };
    worker(storage).concurrency(16).handle(order).handle(refund).build().unwrap()
}

/// Sends `each` messages of both versions and of the new kind; returns how many.
pub async fn send(storage: &Storage, each: usize) -> usize {
    let (first, second) =
        (storage.queue::<OrderV1>().await.unwrap(), storage.queue::<OrderV2>().await.unwrap());
    let refunds = storage.queue::<Refund>().await.unwrap();
    for n in 0..each {
        let _ = first.send(&OrderV1 { id: format!("first {n}") }).await.unwrap();
        let _ = second.send(&OrderV2 { id: format!("second {n}"), express: true }).await.unwrap();
        let _ = refunds.send(&Refund { id: format!("refund {n}") }).await.unwrap();
    }
    3 * each
}

pub fn count(done: &Done) -> usize {
    done.lock().unwrap().len()
}

pub async fn dead_letters(storage: &Storage) -> Vec<jobqueue::dead_letters::DeadLetter> {
    storage.queue::<OrderV1>().await.unwrap().dead_letters().unwrap().list().await.unwrap().letters
}

fn released(reports: &[Report]) -> u64 {
    reports.iter().map(|report| report.released).sum()
}

// W-skew: the new release comes beside the old one.
#[tokio::test(start_paused = true)]
async fn old_workers_beside_a_new_one_leave_the_work_to_it() {
    let (storage, done) = (in_memory(), Done::default());
    let mut running = JoinSet::new();
    for _ in 0..3 {
        running.spawn(old(&storage, &done).run_until(after(300)));
    }
    running.spawn(new(&storage, &done).run_until(after(300)));
    let sent = send(&storage, 200).await;
    let began = Instant::now();
    while count(&done) < sent {
        assert!(began.elapsed() < Duration::from_secs(120), "{} of {sent}", count(&done));
        after(1).await;
    }
    let reports: Vec<_> = running.join_all().await.into_iter().map(Result::unwrap).collect();
    assert!(dead_letters(&storage).await.is_empty());
    assert!(released(&reports) < 4 * sent as u64, "{}", released(&reports));
}

// round 31, newcomer a: one misspelt kind.
#[tokio::test(start_paused = true)]
async fn message_that_nobody_knows_holds_up_no_other() {
    let (storage, done) = (in_memory(), Done::default());
    let _ = storage.queue::<Refund>().await.unwrap().send(&Refund { id: "never".into() }).await.unwrap();
    let orders = storage.queue::<OrderV1>().await.unwrap();
    let running = tokio::spawn(old(&storage, &done).run_until(after(900)));
    after(600).await;
    for n in 0..20 {
        // Some at once after the former, and some later.
        after(n % 4).await;
        let _ = orders.send(&OrderV1 { id: n.to_string() }).await.unwrap();
        let began = Instant::now();
        while count(&done) as u64 <= n {
            assert!(began.elapsed() < Duration::from_millis(250), "{n}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    let reports = [running.await.unwrap().unwrap()];
    assert!(released(&reports) > 20, "{reports:?}");
    assert!(dead_letters(&storage).await.is_empty());
}

// M: the messages of the new release come first, and its worker hours later.
#[tokio::test(start_paused = true)]
async fn kind_of_the_next_release_waits_for_it() {
    let (storage, done) = (in_memory(), Done::default());
    let sent = send(&storage, 5).await;
    let reports = [old(&storage, &done).run_until(after(20 * 3_600)).await.unwrap()];
    assert_eq!(count(&done), 5);
    assert_eq!(dead_letters(&storage).await.len(), 0);
    // A look at each message in some 15 to 30 seconds: the message's back-off.
    assert!(released(&reports) < 10 * 4_000, "{}", released(&reports));
    let _ = new(&storage, &done).run_until(after(600)).await.unwrap();
    assert_eq!(count(&done), sent);
    assert_eq!(dead_letters(&storage).await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn unknown_kind_is_dead_lettered_after_configured_time() {
    for (seconds, setting) in [(86_400, None), (3_600, Some("3600")), (86_400, Some("0"))] {
        let (storage, done) = (in_memory(), Done::default());
        send(&storage, 2).await;
        if let Some(setting) = setting {
            let metadata = Metadata::new().with("unknownkindseconds", setting);
            storage.queues().set_queue_metadata(&"orders".parse().unwrap(), &metadata).await.unwrap();
        }
        let _ = old(&storage, &done).run_until(after(seconds - 60)).await.unwrap();
        assert_eq!(dead_letters(&storage).await.len(), 0, "{setting:?}");
        let _ = old(&storage, &done).run_until(after(600)).await.unwrap();
        let mut reasons: Vec<_> =
            dead_letters(&storage).await.into_iter().map(|letter| letter.reason).collect();
        reasons.sort();
        assert_eq!(
            reasons,
            ["newer_version", "newer_version", "unknown_kind", "unknown_kind"],
            "{setting:?}"
        );
    }
}

// W11: they go to the dead-letter queue no faster than other messages that are never run.
#[tokio::test(start_paused = true)]
async fn unknown_kinds_are_dead_lettered_at_the_rate_of_rejections() {
    const FLOOD: usize = 2_000;
    let storage = in_memory();
    let refunds = storage.queue::<Refund>().await.unwrap();
    let metadata = Metadata::new().with("unknownkindseconds", "1");
    storage.queues().set_queue_metadata(refunds.name(), &metadata).await.unwrap();
    let flood: Vec<_> = (0..FLOOD).map(|n| Refund { id: n.to_string() }).collect();
    assert!(refunds.send_all(&flood).await.unwrap().iter().all(Result::is_ok));
    let dead_lettered: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let sink = Arc::clone(&dead_lettered);
    let listen = move |event: &Event| {
        if matches!(event, Event::Finished { outcome: Outcome::DeadLettered(_), .. }) {
            sink.lock().unwrap().push(Instant::now());
        }
    };
    let handler = |_: OrderV1| async { Ok::<(), JobError>(()) };
    let limited =
        worker(&storage).rejections_per_second(50).handle(handler).on_event(listen).build().unwrap();
    let _ = limited.run_until(after(600)).await.unwrap();
    let dead_lettered = dead_lettered.lock().unwrap().clone();
    assert_eq!(dead_lettered.len(), FLOOD, "all, in the end");
    let within_a_second = |first: &Instant| {
        dead_lettered.iter().filter(|at| **at >= *first && **at - *first < Duration::from_secs(1)).count()
    };
    assert!(dead_lettered.iter().map(within_a_second).all(|count| count <= 100));
}
