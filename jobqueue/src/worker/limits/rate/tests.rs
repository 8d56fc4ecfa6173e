use super::*;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn tokens_come_evenly_and_no_more_than_a_burst_is_saved() {
    let limit = RateLimit::new(10, SECOND).burst(3);
    let started = Instant::now();
    for _ in 0..23 {
        limit.take().await.spend();
    }
    assert_eq!(started.elapsed().as_millis(), 2_000);
    tokio::time::sleep(SECOND * 60).await;
    let saved = std::iter::from_fn(|| limit.try_take().ok()).map(RateToken::spend).count();
    assert_eq!(saved, 3);
}

#[tokio::test(start_paused = true)]
async fn unused_token_goes_to_the_next_waiter() {
    let limit = RateLimit::new(1, SECOND * 3_600);
    let unused = limit.take().await;
    let started = Instant::now();
    let waits = tokio::spawn({
        let limit = limit.clone();
        async move { limit.take().await.spend() }
    });
    tokio::task::yield_now().await;
    assert!(limit.try_take().is_err(), "another caller waits first");
    drop(unused);
    waits.await.unwrap();
    assert_eq!(started.elapsed(), Duration::ZERO);
    let next = limit.try_take().map(RateToken::spend).unwrap_err();
    assert_eq!(next, SECOND * 3_600);
}

#[tokio::test(start_paused = true)]
async fn tokens_that_go_back_late_are_not_saved_beyond_the_burst() {
    let limit = RateLimit::new(1, SECOND).burst(2);
    let unused = [limit.take().await, limit.take().await];
    tokio::time::sleep(SECOND * 10).await;
    drop(unused);
    assert_eq!(std::iter::from_fn(|| limit.try_take().ok()).map(RateToken::spend).count(), 2);
}

#[tokio::test(start_paused = true)]
async fn tokens_that_were_held_up_begin_at_the_rate() {
    let limit = RateLimit::new(10, SECOND).burst(2);
    let mut held = Vec::new();
    for _ in 0..64 {
        held.push(limit.take().await);
    }
    tokio::time::sleep(SECOND * 20).await;
    let begun: Vec<_> = held.into_iter().map(|token| token.begin(SECOND)).collect();
    let wait = |start: &HandlerStart| match start {
        HandlerStart::After(wait) => wait.as_millis(),
        HandlerStart::Asks(_) => unreachable!("no other process shares the rate"),
    };
    let waits: Vec<_> = begun.iter().flatten().map(wait).collect();
    assert_eq!(waits, [0, 0, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1_000]);
    assert_eq!(begun.into_iter().filter_map(Result::err).collect::<Vec<_>>(), [SECOND * 11 / 10; 52]);
}

#[tokio::test(start_paused = true)]
async fn extreme_rates_neither_panic_nor_run_away() {
    let never = RateLimit::new(0, Duration::MAX).burst(u32::MAX);
    assert!(never.try_take().is_ok());
    let often = RateLimit::new(u32::MAX, Duration::ZERO);
    often.take().await.spend();
    often.take().await.spend();
}
