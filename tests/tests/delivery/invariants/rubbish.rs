//! A flood of unreadable messages with good ones among them: I13, F99.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::storage::{GetMessages, Operation, PutMessage};
use jobqueue::{Event, JobError, Outcome};
use jobqueue_testing::faults::{Call, Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, task, worker};
use tokio::time::{Instant, sleep};

const RUBBISH: usize = 10_000;
const RATE: u32 = 100;

// I13, F99
#[tokio::test(start_paused = true)]
async fn flood_of_rubbish_is_dead_lettered_at_a_rate() {
    // Quiet: at the distance of Azure, 16 slots take a minute to pass 10,000 messages on, at whatever rate
    // they die.
    let faulty = Faulty::quiet(&in_memory());
    let storage = faulty.storage();
    let tasks = storage.queue::<Task>().await.unwrap();
    let rubbish = (0..RUBBISH).map(|n| PutMessage::new(format!("rubbish {n}"))).collect();
    storage
        .queues()
        .put_all(&"tasks".parse().unwrap(), rubbish)
        .await
        .into_iter()
        .for_each(|put| drop(put.unwrap()));
    // A good one every second, behind and among the rubbish.
    let sending = tasks.clone();
    tokio::spawn(async move {
        for second in 0..60 {
            let _ = sending.send(&task(second.to_string())).await.unwrap();
            after(1).await;
        }
    });

    let began = Instant::now();
    let dead_lettered: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let delays: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let (sink, delays_sink) = (Arc::clone(&dead_lettered), Arc::clone(&delays));
    let handler = move |task: Task| {
        let sent = Duration::from_secs(task.name.parse().unwrap());
        delays_sink.lock().unwrap().push(began.elapsed().saturating_sub(sent));
        async { Ok::<(), JobError>(()) }
    };
    let listen = move |event: &Event| {
        if matches!(event, Event::Finished { outcome: Outcome::DeadLettered(_), .. }) {
            sink.lock().unwrap().push(began.elapsed());
        }
    };
    let builder = worker(&storage).concurrency(16).rejections_per_second(RATE).circuit_breaker(None);
    let report =
        builder.handle(handler).on_event(listen).build().unwrap().run_until(after(180)).await.unwrap();

    // By virtual time, so that no slow machine makes a difference.
    let delays = delays.lock().unwrap().clone();
    assert_eq!(delays.len(), 60);
    assert!(delays.iter().all(|delay| *delay <= Duration::from_secs(2)), "{delays:?}");
    let dead_lettered = dead_lettered.lock().unwrap().clone();
    for (n, at) in dead_lettered.iter().enumerate() {
        let within =
            dead_lettered[n..].iter().take_while(|later| **later - *at < Duration::from_secs(1)).count();
        assert!(within <= 2 * RATE as usize, "{within} in the second after {at:?}");
    }
    assert_eq!(report.dead_lettered, RUBBISH as u64, "all of it, in the end");
    assert!(*dead_lettered.last().unwrap() >= Duration::from_secs(90), "not faster than the rate");
    assert!(*dead_lettered.last().unwrap() <= Duration::from_secs(150), "nor much slower");
    assert!(report.released <= 2 * RUBBISH as u64, "put back {} times", report.released);
    assert!(tasks.is_empty().await.unwrap());
    assert_eq!(tasks.dead_letters().unwrap().list().await.unwrap().letters.len(), RUBBISH);
    assert!(faulty.calls_of(Operation::Get) < 4 * RUBBISH);
}

// F99
#[tokio::test(start_paused = true)]
async fn dead_letter_rate_costs_no_attempt() {
    let storage = in_memory();
    let tasks = storage.queue::<Task>().await.unwrap();
    for n in 0..500 {
        storage
            .queues()
            .put(&"tasks".parse().unwrap(), PutMessage::new(format!("rubbish {n}")))
            .await
            .unwrap();
    }
    let handler = |_: Task| async { Ok::<(), JobError>(()) };
    let idle = worker(&storage).rejections_per_second(1).handle(handler).build().unwrap();
    assert_eq!(idle.run_until_idle().await.unwrap().dead_lettered, 500);

    for n in 0..500 {
        storage
            .queues()
            .put(&"tasks".parse().unwrap(), PutMessage::new(format!("rubbish {n}")))
            .await
            .unwrap();
    }
    let unlimited =
        worker(&storage).rejections_per_second(None).circuit_breaker(None).handle(handler).build().unwrap();
    let report = unlimited.run_until(after(1)).await.unwrap();
    assert_eq!(report.dead_lettered, 500);
    assert_eq!(report.released, 0);
    assert!(tasks.is_empty().await.unwrap());
}

// audit 28, core B2: each such message held a slot while its claim was read.
#[tokio::test(start_paused = true)]
async fn blobs_that_hang_give_no_slots_to_messages_that_cannot_run() {
    flood_while_blobs_hang(1).await;
}

// last look 28, core 1: with the default rate they held the slots behind the places to settle.
#[tokio::test(start_paused = true)]
async fn blobs_that_hang_give_few_slots_to_messages_at_the_default_rate() {
    flood_while_blobs_hang(RATE).await;
}

async fn flood_while_blobs_hang(rate: u32) {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let tasks = storage.queue::<Task>().await.unwrap();
    let name = "tasks".parse().unwrap();
    let rubbish = (0..96).map(|n| PutMessage::new(format!("rubbish {n}"))).collect();
    storage.queues().put_all(&name, rubbish).await.into_iter().for_each(|put| drop(put.unwrap()));
    // Their first delivery: a claim is looked up from the second one on.
    for _ in 0..3 {
        let received =
            storage.queues().get(&name, GetMessages::new(32, Duration::from_secs(1))).await.unwrap();
        assert_eq!(received.messages.len(), 32);
    }
    let is_claim = |call: &Call| call.subject.contains("jobqueue-completed");
    faulty.on(Operation::GetBlob, move |call| {
        is_claim(call).then_some(Fault::DelayBefore(Duration::from_secs(30)))
    });
    let good = async {
        sleep(Duration::from_secs(10)).await;
        for n in 0..20 {
            let _ = tasks.send(&task(n.to_string())).await.unwrap();
        }
    };
    let began = Instant::now();
    let done: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let sink = Arc::clone(&done);
    let handler = move |_: Task| {
        sink.lock().unwrap().push(began.elapsed());
        async { Ok::<(), JobError>(()) }
    };
    let worker = worker(&storage).concurrency(32).rejections_per_second(rate).circuit_breaker(None);
    let worker = worker.handle(handler).build().unwrap();
    let (_, report) = tokio::join!(good, worker.run_until(after(120)));
    assert_eq!(report.unwrap().completed, 20);
    let done = done.lock().unwrap().clone();
    assert!(done.iter().all(|at| *at < Duration::from_secs(15)), "{done:?}");
}
