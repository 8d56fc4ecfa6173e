//! A new release that comes late, on virtual time and a storage that sends no notifications, as Azure
//! Storage.

use std::time::Duration;

use jobqueue::memory;
use jobqueue_testing::faults::{AzureLike, Faulty};
use jobqueue_tests::jobs::{after, runtime};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::workers::{Done, count, dead_letters, new, old, send};

/// A deploy: the number of old workers, the time in seconds for which they are alone, and the number of
/// messages of each sort.
struct Deploy {
    old: usize,
    alone: u64,
    each: usize,
}

impl Deploy {
    /// Returns the time from the start of the new worker until every message has run.
    async fn run(self, number: u64) -> Duration {
        let memory = memory::open_on(runtime().with_seed(number));
        let faulty = Faulty::azure_like(&memory, AzureLike::seeded(number));
        let (storage, done) = (faulty.storage().clone(), Done::default());
        let mut workers = JoinSet::new();
        for _ in 0..self.old {
            workers.spawn(old(&storage, &done).run_until(std::future::pending()));
        }
        let sent = send(&memory, self.each).await;
        after(self.alone).await;
        let began = Instant::now();
        workers.spawn(new(&storage, &done).run_until(std::future::pending()));
        while count(&done) < sent {
            assert!(began.elapsed() < Duration::from_secs(3_600), "{} of {sent}", count(&done));
            after(1).await;
        }
        assert!(dead_letters(&memory).await.is_empty());
        began.elapsed()
    }
}

// M: on Azurite, 144 of 2,000 messages were left five minutes after the new worker had come.
#[tokio::test(start_paused = true)]
async fn a_late_release_runs_what_waited_within_five_minutes() {
    for (number, old, alone, each) in
        [(1, 3, 0, 667), (2, 3, 360, 667), (3, 3, 360, 667), (4, 10, 360, 667), (5, 3, 7_200, 20)]
    {
        let took = Deploy { old, alone, each }.run(number).await;
        println!("seed {number}, {old} old workers, alone for {alone} s: all run after {took:?}");
        assert!(took <= Duration::from_secs(300), "seed {number}: {took:?}");
    }
}
