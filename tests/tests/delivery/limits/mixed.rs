//! Limits of handlers whose queue has messages of other kinds too.

use jobqueue::worker::{HandlerLimits, RateLimit};
use jobqueue_tests::jobs::{in_memory, worker};
use tokio::time::sleep;

use crate::limits::{Other, Quick, SECOND, Slow, Watch, other, quick, send, slow};

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_limited_does_not_hold_up_the_others_of_its_queue() {
    let (storage, watch) = (in_memory(), Watch::default());
    send(&storage, 40, || Slow { seconds: 120 }).await;
    send(&storage, 40, || Other { seconds: 1 }).await;
    let worker = worker(&storage).state(watch.clone()).handle(slow).handle(other);
    let worker = worker.limit::<Slow>(HandlerLimits::new().concurrency(2)).build().unwrap();
    let all = async {
        sleep(SECOND * 110).await;
        assert_eq!(watch.count("other"), 40);
        assert_eq!(watch.count("slow"), 0);
        assert_eq!(watch.running.lock().unwrap().0, 2);
        watch.until("slow", 40).await;
    };
    let report = worker.run_until(all).await.unwrap();
    assert_eq!(report.completed, 80);
    assert_eq!(report.dead_lettered, 0);
    assert_eq!(report.retried, 0);
    let slow: Vec<_> = watch.ended().into_iter().filter(|ran| ran.kind == "slow").collect();
    assert!(slow.iter().all(|ran| ran.attempt == 1));
    for ran in &slow {
        let at_once =
            slow.iter().filter(|other| ran.began.saturating_duration_since(other.began) < SECOND * 120);
        assert!(at_once.filter(|other| other.began <= ran.began).count() <= 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_kind_with_a_rate_waits_in_its_queue_and_costs_no_attempt() {
    let (storage, watch) = (in_memory(), Watch::default());
    send(&storage, 20, || Slow { seconds: 0 }).await;
    send(&storage, 20, || Other { seconds: 0 }).await;
    let worker = worker(&storage).state(watch.clone()).handle(slow).handle(other);
    let limits = HandlerLimits::new().rate(&RateLimit::new(1, SECOND * 10));
    let worker = worker.limit::<Slow>(limits).build().unwrap();
    let all = async {
        sleep(SECOND * 30).await;
        assert_eq!(watch.count("other"), 20);
        watch.until("slow", 20).await;
    };
    let report = worker.run_until(all).await.unwrap();
    assert_eq!(report.completed, 40);
    assert_eq!(report.dead_lettered, 0);
    let mut slow: Vec<_> = watch.ended().into_iter().filter(|ran| ran.kind == "slow").collect();
    slow.sort_by_key(|ran| ran.began);
    assert!(slow.iter().all(|ran| ran.attempt == 1));
    assert!(slow.windows(2).all(|two| two[1].began >= two[0].began + SECOND * 10));
}

// audit 23, delivery B1
#[tokio::test(start_paused = true)]
async fn a_rate_shared_with_a_queue_of_one_kind_reaches_a_queue_of_several() {
    let (storage, watch) = (in_memory(), Watch::default());
    send(&storage, 600, || Quick { seconds: 0 }).await;
    send(&storage, 20, || Slow { seconds: 0 }).await;
    let limits = HandlerLimits::new().rate(&RateLimit::new(10, SECOND));
    let worker = worker(&storage).state(watch.clone()).handle(slow).handle(other).handle(quick);
    let worker = worker.limit::<Quick>(limits.clone()).limit::<Slow>(limits).build().unwrap();
    let _ = worker.run_until(sleep(SECOND * 20)).await.unwrap();
    assert!(watch.count("slow") >= 10, "{}", watch.count("slow"));
    assert!(watch.count("quick") >= 100, "{}", watch.count("quick"));
}

// audit 23, delivery B1
#[tokio::test(start_paused = true)]
async fn a_count_shared_with_a_queue_of_one_kind_reaches_a_queue_of_several() {
    let (storage, watch) = (in_memory(), Watch::default());
    let alone = storage.queue_named::<Quick>("alone").await.unwrap();
    // Longer than a place is kept after one refusal.
    let jobs: Vec<Quick> = (0..300).map(|_| Quick { seconds: 20 }).collect();
    let _ = alone.send_all(&jobs).await.unwrap();
    let beside_others = storage.queue_named::<Quick>("slow").await.unwrap();
    let _ = beside_others.send_all(&jobs[..10]).await.unwrap();
    let worker = worker(&storage).state(watch.clone()).handle(other);
    let worker = worker.handle_on("alone", quick).handle_on("slow", quick);
    let worker = worker.limit::<Quick>(HandlerLimits::new().concurrency(2)).build().unwrap();
    let mut left = (300, 10);
    let time = async {
        sleep(SECOND * 500).await;
        left = (alone.approximate_len().await.unwrap(), beside_others.approximate_len().await.unwrap());
    };
    let _ = worker.run_until(time).await.unwrap();
    assert_eq!(left.1, 0);
    assert!(left.0 < 280, "{}", left.0);
    assert_eq!(watch.most(), 2);
}

// audit 23, delivery B1
#[tokio::test(start_paused = true)]
async fn a_place_that_is_kept_for_a_job_that_is_gone_is_used_again() {
    let (storage, watch) = (in_memory(), Watch::default());
    let beside_others = storage.queue_named::<Quick>("slow").await.unwrap();
    let alone = storage.queue_named::<Quick>("alone").await.unwrap();
    let jobs: Vec<Quick> = (0..20).map(|_| Quick { seconds: 2 }).collect();
    let _ = alone.send_all(&jobs).await.unwrap();
    let worker = worker(&storage).state(watch.clone()).handle(other);
    let worker = worker.handle_on("alone", quick).handle_on("slow", quick);
    let worker = worker.limit::<Quick>(HandlerLimits::new().concurrency(1)).build().unwrap();
    let all = async {
        sleep(SECOND).await;
        beside_others.send(&Quick { seconds: 2 }).await.unwrap();
        sleep(SECOND / 2).await;
        storage.queues().clear(beside_others.name()).await.unwrap();
        sleep(SECOND * 60).await;
        assert_eq!(watch.count("quick"), 20);
    };
    let _ = worker.run_until(all).await.unwrap();
}
