//! Shares of the slots, and concurrency by queue.

use std::sync::Arc;

use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::worker::{CircuitBreaker, HandlerLimits, QueueLimits};
use jobqueue::{Context, ErrorKind, JobError, SendOptions, Worker};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{in_memory, worker};
use tokio::time::{Instant, sleep};

use crate::limits::{Other, Quick, SECOND, Slow, Watch, other, queue, quick, send, slow};

#[tokio::test(start_paused = true)]
async fn jobs_that_run_for_hours_do_not_hold_up_another_queue() {
    let (storage, watch) = (in_memory(), Watch::default());
    send(&storage, 200, || Slow { seconds: 36_000 }).await;
    let worker = worker(&storage).state(watch.clone()).handle(slow).handle(quick).build().unwrap();
    let quick = async {
        sleep(SECOND * 10).await;
        assert!(watch.running.lock().unwrap().0 > 48, "a queue alone may have most of the slots");
        send(&storage, 100, || Quick { seconds: 1 }).await;
        let sent = Instant::now();
        watch.until("quick", 100).await;
        assert!(sent.elapsed() < SECOND * 60, "{:?}", sent.elapsed());
    };
    let report = worker.run_until(quick).await.unwrap();
    assert_eq!(report.completed, 100);
    assert_eq!(watch.count("slow"), 0);
}

#[tokio::test(start_paused = true)]
async fn queues_with_work_share_the_slots_by_weight() {
    let (storage, watch) = (in_memory(), Watch::default());
    send(&storage, 900, || Slow { seconds: 1 }).await;
    send(&storage, 900, || Quick { seconds: 1 }).await;
    let worker = worker(&storage).concurrency(40).state(watch.clone()).handle(slow).handle(quick);
    let worker = worker.limit_queue("quick", QueueLimits::new().weight(3)).build().unwrap();
    let _ = worker.run_until(sleep(SECOND * 20)).await.unwrap();
    let (slow, quick) = (watch.count("slow"), watch.count("quick"));
    assert!(quick > slow * 2 && quick < slow * 4 && slow + quick > 700, "{slow} and {quick}");
}

// newcomers 33: the places went by arrival, and each queue had half of them.
#[tokio::test(start_paused = true)]
async fn queues_of_one_kind_share_its_concurrency_by_weight() {
    let (faulty, watch) = (Faulty::new(&in_memory()), Watch::default());
    let storage = faulty.storage();
    send(&storage, 600, || Slow { seconds: 1 }).await;
    let urgent = storage.queue_named::<Slow>("urgent").await.unwrap();
    for _ in 0..600 {
        let keyed = SendOptions::new().key("urgent");
        let _ = urgent.send(&Slow { seconds: 1 }).with(keyed).await.unwrap();
    }
    let worker = worker(&storage).state(watch.clone()).handle(slow).handle_on("urgent", slow);
    let worker = worker.limit::<Slow>(HandlerLimits::new().concurrency(10));
    let worker = worker.limit_queue("urgent", QueueLimits::new().weight(4)).build().unwrap();
    let _ = worker.run_until(sleep(SECOND * 40)).await.unwrap();
    let ended = watch.ended();
    let urgent = ended.iter().filter(|ran| ran.key.is_some()).count();
    let others = ended.len() - urgent;
    assert!(urgent > others * 3 && urgent < others * 5, "{urgent} and {others}");
    assert!(ended.len() > 300, "{}", ended.len());
}

// review 34 c, C5: the other queue fetched most of its messages by a request for each.
#[tokio::test(start_paused = true)]
async fn queue_with_an_open_circuit_keeps_no_share_of_the_slots() {
    // Quiet: the jobs of a second end together, and the requests for the next are counted.
    let (faulty, watch) = (Faulty::quiet(&in_memory()), Watch::default());
    let storage = faulty.storage();
    send(&storage, 200, || Slow { seconds: 1 }).await;
    let breaker = CircuitBreaker::new().failures(5).pause(SECOND * 3_600, SECOND * 3_600);
    let fail = async |_: Slow| Err::<(), _>(JobError::retry_after(SECOND * 3_600, "planted"));
    let worker = worker(&storage).concurrency(40).circuit_breaker(breaker).state(watch.clone());
    let worker = worker.handle(fail).handle(quick).limit_queue("slow", QueueLimits::new().weight(9));
    let quick = async {
        sleep(SECOND * 5).await;
        send(&storage, 310, || Quick { seconds: 1 }).await;
        watch.until("quick", 310).await;
    };
    let report = worker.build().unwrap().run_until(quick).await.unwrap();
    assert!(report.retried < 150, "the circuit is open: {report:?}");
    let calls = faulty.calls();
    let gets =
        calls.iter().filter(|call| call.operation == Operation::Get && call.subject == "quick").count();
    assert!(gets < 80, "{gets}");
}

#[tokio::test(start_paused = true)]
async fn a_worker_with_one_slot_serves_its_queues_in_turn() {
    let (storage, watch) = (in_memory(), Watch::default());
    send(&storage, 20, || Slow { seconds: 1 }).await;
    send(&storage, 20, || Quick { seconds: 1 }).await;
    let worker = worker(&storage).concurrency(1).state(watch.clone()).handle(slow).handle(quick);
    assert_eq!(worker.build().unwrap().run_until_idle().await.unwrap().completed, 40);
    assert_eq!(watch.most(), 1);
    let first: Vec<_> = watch.ended().iter().take(20).map(|ran| ran.kind.clone()).collect();
    let slow = first.iter().filter(|kind| *kind == "slow").count();
    assert!((8..=12).contains(&slow), "{first:?}");
}

#[tokio::test(start_paused = true)]
async fn messages_over_a_limit_are_not_fetched() {
    let (storage, watch, other_watch) = (in_memory(), Watch::default(), Watch::default());
    send(&storage, 50, || Slow { seconds: 3_600 }).await;
    let limited = worker(&storage).state(watch.clone()).handle(slow);
    let limited = limited.limit_queue("slow", QueueLimits::new().concurrency(3)).build().unwrap();
    let running = tokio::spawn(limited.run_until(sleep(SECOND * 7_200)));
    sleep(SECOND * 60).await;
    // Whatever the first has not leased another worker gets at once.
    let free = worker(&storage).state(other_watch.clone()).handle(slow).build().unwrap();
    let _ = free.run_until(sleep(SECOND * 3_700)).await.unwrap();
    assert_eq!(watch.most(), 3);
    assert_eq!(other_watch.count("slow"), 47);
    let _ = running.await.unwrap().unwrap();
    assert!(watch.ended().iter().all(|ran| ran.attempt == 1));
}

#[tokio::test(start_paused = true)]
async fn slots_come_back_after_lost_answers_failures_and_panics() {
    let (memory, watch) = (in_memory(), Watch::default());
    send(&memory, 60, || Slow { seconds: 1 }).await;
    let faulty = Faulty::new(&memory);
    let calls = Arc::new(std::sync::atomic::AtomicU64::new(0));
    for &operation in Operation::ALL {
        let calls = Arc::clone(&calls);
        faulty.on(operation, move |call| {
            let number = calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let lost = matches!(call.operation, Operation::Get | Operation::Update | Operation::Delete);
            (lost && number.is_multiple_of(5) && number < 400)
                .then_some(Fault::DropAnswer(StoreErrorKind::Timeout))
        });
    }
    let faulty_slow = {
        let watch = watch.clone();
        move |job: Slow, ctx: jobqueue::Context| {
            let watch = watch.clone();
            async move {
                watch.run(&ctx, job.seconds).await;
                let number = watch.count("slow");
                assert!(number % 11 != 3, "this one panics");
                if number % 7 == 2 { Err(JobError::retry("this one fails")) } else { Ok(()) }
            }
        }
    };
    let worker = worker(&faulty.storage()).handle(faulty_slow).circuit_breaker(None);
    let worker = worker.limit_queue("slow", QueueLimits::new().concurrency(4)).build().unwrap();
    let later = async {
        sleep(SECOND * 3_600).await;
        faulty.heal();
        let before = watch.count("slow");
        watch.running.lock().unwrap().1 = 0;
        send(&memory, 40, || Slow { seconds: 60 }).await;
        watch.until("slow", before + 40).await;
        assert_eq!(watch.most(), 4, "all slots are there again");
    };
    let _ = worker.run_until(later).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn messages_in_order_keep_it_within_limits() {
    let (storage, watch) = (in_memory(), Watch::default());
    let slows = queue::<Slow>(&storage).await;
    for number in 0..60 {
        let key = format!("key {}", number % 3);
        let options = SendOptions::new().key(key).in_order().id(format!("{:03}", number));
        let _ = slows.send(&Slow { seconds: 1 }).with(options).await.unwrap();
    }
    let order = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let handler = {
        let (watch, order) = (watch.clone(), order.clone());
        move |job: Slow, ctx: jobqueue::Context| {
            let (watch, order) = (watch.clone(), order.clone());
            async move {
                order.lock().unwrap().push(ctx.info().id.to_string());
                watch.run(&ctx, job.seconds).await;
                Ok(())
            }
        }
    };
    let worker = worker(&storage).handle(handler).handle(other).state(watch.clone());
    let limited = worker.limit_queue("slow", QueueLimits::new().concurrency(2));
    let limited = limited.limit::<Slow>(HandlerLimits::new().concurrency(2)).build().unwrap();
    let _ = limited.run_until(watch.until("slow", 60)).await.unwrap();
    assert_eq!(watch.most(), 2);
    for key in 0..3 {
        let key = format!("key {key}");
        let begun: Vec<_> = watch.ended().into_iter().filter(|ran| ran.key.as_ref() == Some(&key)).collect();
        assert_eq!(begun.len(), 20);
        assert!(begun.windows(2).all(|two| two[1].began >= two[0].began + SECOND), "{begun:?}");
    }
    for key in 0..3 {
        let of_key = |id: &&String| id.parse::<usize>().unwrap() % 3 == key;
        let ids: Vec<_> = order.lock().unwrap().iter().filter(of_key).cloned().collect();
        assert!(ids.is_sorted(), "{ids:?}");
    }
}

#[test]
fn limits_that_cannot_be_kept_are_refused() {
    let build = |limit: fn(jobqueue::WorkerBuilder) -> jobqueue::WorkerBuilder| {
        let builder = Worker::builder(jobqueue::Storage::memory()).state(Watch::default()).handle(slow);
        let error = limit(builder).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
        error.to_string()
    };
    assert!(build(|b| b.limit_queue("slow", QueueLimits::new().concurrency(0))).contains("at least 1"));
    assert!(build(|b| b.limit_queue("slow", QueueLimits::new().weight(0))).contains("at least 1"));
    assert!(build(|b| b.limit_queue("slwo", QueueLimits::new())).contains("`slwo`"));
    assert!(build(|b| b.limit::<Other>(HandlerLimits::new())).contains("`other`"));
    assert!(build(|b| b.limit::<Slow>(HandlerLimits::new().concurrency(0))).contains("at least 1"));
}

// A handler may name a queue for each tenant.
#[tokio::test(start_paused = true)]
async fn queues_that_handlers_name_are_forgotten_in_time() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    send(&storage, 1, || Slow { seconds: 1 }).await;
    let handler = move |_: Slow, ctx: Context| {
        let faulty = faulty.clone();
        async move {
            let of_first = || faulty.calls().iter().filter(|call| call.subject == "tenant-0").count();
            for tenant in 0..1_001 {
                let _ = ctx.queue_named::<Quick>(&format!("tenant-{tenant}")).await?;
            }
            let before = of_first();
            let _ = ctx.queue_named::<Quick>("tenant-0").await?;
            let is_forgotten = of_first() > before;
            if is_forgotten { Ok(()) } else { Err(JobError::dead_letter("it is still open")) }
        }
    };
    let report = worker(&storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1, "{report:?}");
}
