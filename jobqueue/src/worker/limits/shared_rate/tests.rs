//! Several processes, each with a limiter of its own, on virtual time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue_testing::faults::{Fault, Faulty};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::super::rate::{MAX_START_DELAY, RateLimit, RateToken};
use super::{Rate, RateRecord};
use crate::delivery::HandlerStart;
use crate::memory;
use crate::runtime::Runtime;
use crate::storage::{Operation, StoreErrorKind};
use crate::sync::lock;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn faulty() -> Faulty {
    Faulty::new(&memory::open_on(Runtime::paused()))
}

/// Returns the limiter of one process.
fn process(faulty: &Faulty, jobs: u32, per: Duration, burst: u32) -> RateLimit {
    let (limit, storage) = (RateLimit::new(jobs, per).burst(burst), faulty.storage());
    limit.shared_over(storage.blobs(), storage.runtime(), "provider").unwrap()
}

async fn begin(token: RateToken) -> bool {
    let start = match token.begin(MAX_START_DELAY) {
        Ok(HandlerStart::After(wait)) => Ok(wait),
        Ok(HandlerStart::Asks(asked)) => asked.await,
        Err(wait) => Err(wait),
    };
    match start {
        Ok(wait) => sleep(wait).await,
        Err(wait) => sleep(wait).await,
    }
    start.is_ok()
}

/// Begins jobs as often as the limiter allows until `end`, and adds their times to `begun`.
async fn work(limit: RateLimit, end: Instant, begun: Arc<Mutex<Vec<Instant>>>) {
    let jobs = async {
        loop {
            if begin(limit.take().await).await {
                lock(&begun).push(Instant::now());
            }
        }
    };
    let _ = timeout_at(end, jobs).await;
}

/// Runs processes that have work all the time, and returns the times at which jobs began.
async fn run(processes: impl IntoIterator<Item = RateLimit>, time: Duration) -> Vec<Instant> {
    let (begun, end) = (Arc::default(), Instant::now() + time);
    let mut running = JoinSet::new();
    for limit in processes {
        running.spawn(work(limit, end, Arc::clone(&begun)));
    }
    running.join_all().await;
    let mut begun = std::mem::take(&mut *lock(&begun));
    begun.sort();
    begun
}

/// The promise of `across_workers`, for each span between two jobs.
fn assert_bound(begun: &[Instant], per_second: f64, burst: usize) {
    for (first, began) in begun.iter().enumerate() {
        for (last, ended) in begun.iter().enumerate().skip(first) {
            let span = (*ended - *began) + 2 * SECOND;
            let most = burst as f64 + span.as_secs_f64() * per_second;
            assert!((last - first + 1) as f64 <= most, "{} jobs in {span:?}", last - first + 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn processes_share_one_rate() {
    for (processes, burst) in [(1, 1), (4, 1), (4, 20), (20, 5)] {
        let faulty = faulty();
        let begun = run((0..processes).map(|_| process(&faulty, 100, SECOND, burst)), MINUTE).await;
        assert_bound(&begun, 100.0, burst as usize);
        let expected = 6_000 + burst as usize;
        assert!(begun.len().abs_diff(expected) <= expected / 50, "{processes}: {}", begun.len());
    }
}

#[tokio::test(start_paused = true)]
async fn rate_is_used_by_whoever_has_work_and_costs_two_requests_a_second() {
    let faulty = faulty();
    let (busy, idle) = (process(&faulty, 100, SECOND, 1), process(&faulty, 100, SECOND, 1));
    let end = Instant::now() + MINUTE;
    let polls = async {
        while Instant::now() < end {
            drop(idle.take().await);
            sleep(SECOND / 10).await;
        }
    };
    let (begun, ()) = tokio::join!(run([busy], MINUTE), polls);
    assert!(begun.len() >= 5_880, "{}", begun.len());
    let writes = faulty.calls_of(Operation::PutBlob);
    assert!(writes <= 2 * 60 + 12, "{writes}");
}

#[tokio::test(start_paused = true)]
async fn slow_rates_lose_no_turn() {
    let faulty = faulty();
    let begun = run((0..3).map(|_| process(&faulty, 1, MINUTE, 1)), 30 * MINUTE).await;
    assert_bound(&begun, 1.0 / 60.0, 1);
    assert!((30..=31).contains(&begun.len()), "{}", begun.len());
    for pair in begun.windows(2) {
        assert!(pair[1] - pair[0] < MINUTE + SECOND, "{:?}", pair[1] - pair[0]);
    }
}

#[tokio::test(start_paused = true)]
async fn killed_process_takes_a_block_with_it() {
    let faulty = faulty();
    let killed = run([process(&faulty, 100, SECOND, 1)], 10 * SECOND).await;
    let ended = Instant::now();
    let next = run([process(&faulty, 100, SECOND, 1)], 10 * SECOND).await;
    assert!(next[0] - ended <= SECOND, "{:?}", next[0] - ended);
    assert!(next.len() >= 900, "{}", next.len());
    assert_bound(&[killed, next].concat(), 100.0, 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_begins_while_the_record_cannot_be_changed() {
    for fault in [Fault::Refuse(StoreErrorKind::Unavailable), Fault::Hang] {
        let faulty = faulty();
        let limit = process(&faulty, 10, SECOND, 1);
        let before = run([limit.clone()], 10 * SECOND).await;
        faulty.plan_always(Operation::PutBlob, fault);
        let during = run([limit.clone()], MINUTE).await;
        assert!(during.len() <= 10, "what was reserved before: {}", during.len());
        faulty.heal();
        let after = run([limit], 20 * SECOND).await;
        assert!(after.len() >= 120, "{}", after.len());
        assert_bound(&[before, during, after].concat(), 10.0, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn lost_answers_repeat_no_time() {
    let faulty = faulty();
    faulty.on(Operation::PutBlob, |call| {
        (call.nth % 3 == 0).then_some(Fault::DropAnswer(StoreErrorKind::Timeout))
    });
    let begun = run((0..3).map(|_| process(&faulty, 50, SECOND, 1)), MINUTE).await;
    assert_bound(&begun, 50.0, 1);
    assert!(begun.len() > 2_000, "{}", begun.len());
}

#[test]
fn times_follow_what_others_have_reserved() {
    const NOW: u64 = 1_000_000_000_000_000;
    let rate = Rate { interval: SECOND / 10, burst: 3 };
    let (times, record) = rate.reserve(None, NOW, 5).unwrap();
    // A quarter of a second, and the burst, lie before now.
    assert_eq!(times[0], NOW - 250_000 - 200_000);
    assert_eq!((times.len(), times[4] - times[0]), (5, 400_000));
    let (next, record) = rate.reserve(Some(record), NOW, 1).unwrap();
    assert_eq!(next, [times[4] + 100_000]);
    // No further ahead than a second.
    let (times, full) = rate.reserve(Some(record), NOW, 1_000).unwrap();
    assert!(times.iter().all(|time| *time <= NOW + 1_000_000));
    assert_eq!(rate.reserve(Some(full), NOW, 5).unwrap_err(), Duration::from_millis(50));
    // The storage's clock was set back by an hour: what is spent stays spent.
    let hour = 3_600 * 1_000_000;
    let refused = rate.reserve(Some(full), NOW - hour, 5).unwrap_err();
    assert!(refused <= SECOND, "{refused:?}");
    let wide = Rate { interval: Duration::from_micros(1), burst: u32::MAX };
    let damaged = RateRecord { full_at: u64::MAX, changed: 0 };
    assert!(wide.reserve(Some(damaged), NOW, 1).unwrap_err() > MINUTE);
}
