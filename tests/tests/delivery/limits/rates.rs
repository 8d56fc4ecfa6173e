//! Rates that several handlers share.

use std::time::Duration;

use jobqueue::worker::{HandlerLimits, RateLimit};
use jobqueue_tests::jobs::{in_memory, worker};
use tokio::time::{Instant, sleep};

use crate::limits::{Quick, Ran, SECOND, Slow, Watch, quick, send, slow};

/// Returns the most runs that began within a window of so long.
pub(super) fn most_within(ran: &[Ran], window: Duration) -> usize {
    let mut began: Vec<Instant> = ran.iter().map(|ran| ran.began).collect();
    began.sort();
    (0..began.len())
        .map(|n| began[n..].iter().take_while(|at| **at < began[n] + window).count())
        .max()
        .unwrap_or(0)
}

#[tokio::test(start_paused = true)]
async fn handlers_that_share_a_rate_keep_it_together_and_each_gets_its_part() {
    let (storage, watch) = (in_memory(), Watch::default());
    send(&storage, 300, || Slow { seconds: 3 }).await;
    send(&storage, 300, || Quick { seconds: 0 }).await;
    let limit = RateLimit::new(10, SECOND).burst(3);
    let worker = worker(&storage).state(watch.clone()).handle(slow).handle(quick);
    let worker = worker.limit::<Slow>(HandlerLimits::new().rate(&limit));
    let worker = worker.limit::<Quick>(HandlerLimits::new().rate(&limit)).build().unwrap();
    let _ = worker.run_until(sleep(SECOND * 40)).await.unwrap();
    let ran = watch.ended();
    assert!(ran.len() > 380, "{}", ran.len());
    assert!(most_within(&ran, SECOND) <= 14, "{}", most_within(&ran, SECOND));
    let (slow, quick) = (watch.count("slow"), watch.count("quick"));
    assert!(slow.min(quick) * 3 > slow.max(quick), "{slow} and {quick}");
}

#[tokio::test(start_paused = true)]
async fn messages_over_a_rate_are_left_to_other_workers() {
    let (storage, watch, other_watch) = (in_memory(), Watch::default(), Watch::default());
    send(&storage, 50, || Slow { seconds: 0 }).await;
    let limits = HandlerLimits::new().rate(&RateLimit::new(1, SECOND * 3_600));
    let limited = worker(&storage).state(watch.clone()).handle(slow).limit::<Slow>(limits).build().unwrap();
    let running = tokio::spawn(limited.run_until(sleep(SECOND * 600)));
    sleep(SECOND * 10).await;
    let free = worker(&storage).state(other_watch.clone()).handle(slow).build().unwrap();
    assert_eq!(free.run_until_idle().await.unwrap().completed, 49);
    assert_eq!(running.await.unwrap().unwrap().completed, 1);
}

#[tokio::test(start_paused = true)]
async fn looking_at_an_empty_queue_uses_up_no_rate() {
    let (storage, watch) = (in_memory(), Watch::default());
    let limit = RateLimit::new(1, SECOND * 60);
    let worker = worker(&storage).state(watch.clone()).handle(slow).handle(quick);
    let worker = worker.limit::<Slow>(HandlerLimits::new().rate(&limit));
    let worker = worker.limit::<Quick>(HandlerLimits::new().rate(&limit)).build().unwrap();
    let later = async {
        sleep(SECOND * 600).await;
        let sent = Instant::now();
        send(&storage, 3, || Quick { seconds: 0 }).await;
        watch.until("quick", 3).await;
        // The first at once, the others a minute apart.
        assert!(sent.elapsed() < SECOND * 125, "{:?}", sent.elapsed());
    };
    let _ = worker.run_until(later).await.unwrap();
    assert_eq!(most_within(&watch.ended(), SECOND * 59), 1);
}
