//! The number of requests for a job on Azure, each of which is billed.
//!
//! The service is in this process and answers after 5 to 30 milliseconds of paused time; requests are counted
//! exactly.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::azure::Options;
use jobqueue::clock::ManualClock;
use jobqueue::{JobError, QueueMessage, Runtime, Storage, Worker};
use jobqueue_test_support::azurite::connection_string;
use jobqueue_test_support::canned::{Canned, Counted};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "bills", kind = "bill")]
struct Bill {
    /// The time that its handler takes, in milliseconds.
    takes: u64,
}

async fn pay(bill: Bill) -> Result<(), JobError> {
    if bill.takes > 0 {
        tokio::time::sleep(Duration::from_millis(bill.takes)).await;
    }
    Ok(())
}

async fn storage(service: &Arc<Canned>) -> Storage {
    let nowhere =
        connection_string("http://127.0.0.1:1/devstoreaccount1", "http://127.0.0.1:2/devstoreaccount1");
    let options = Options::from_connection_string(&nowhere).unwrap();
    let runtime = Runtime::virtual_time(Arc::new(ManualClock::new()));
    Storage::open(options.in_process(Arc::clone(service) as _).runtime(runtime)).await.unwrap()
}

/// Stores this number of jobs, runs them, and returns the requests.
async fn bill(jobs: u64, takes: impl Fn(u64) -> u64, concurrency: usize) -> (Counted, Duration) {
    let service = Arc::new(Canned::with_latency(5..30, 20261121));
    let storage = storage(&service).await;
    let queue = storage.queue::<Bill>().await.unwrap();
    let bills: Vec<_> = (0..jobs).map(|number| Bill { takes: takes(number) }).collect();
    for sent in queue.send_all(&bills).await.unwrap() {
        sent.unwrap();
    }
    let puts = service.take_counted().puts;
    let begun = tokio::time::Instant::now();
    let worker = Worker::builder(storage).handle(pay).concurrency(concurrency);
    let report = worker.build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, jobs);
    let counted = Counted { puts, ..service.take_counted() };
    println!("{jobs} jobs: {counted:?} in {:?}", begun.elapsed());
    (counted, begun.elapsed())
}

/// One put, one delete and a thirty-second of a get: with the requests of start and end, at most 2.05 per
/// job.
#[tokio::test(start_paused = true)]
async fn a_short_job_at_full_load_costs_at_most_2_05_requests() {
    const JOBS: u64 = 4_096;
    let (counted, _) = bill(JOBS, |_| 0, 64).await;
    assert_eq!(counted.puts, JOBS, "one delete asks for permission");
    assert_eq!(counted.deletes, JOBS + 1, "one delete asks for permission");
    assert!(counted.gets * 100 <= JOBS * 5, "{counted:?}");
}

/// Jobs of 50 to 150 milliseconds free their slots one by one. The slots that are free when the last answer
/// arrives are asked for together. Waiting for more saves a fortieth of the requests and costs a tenth of the
/// throughput.
#[tokio::test(start_paused = true)]
async fn jobs_that_take_a_while_are_not_fetched_one_by_one() {
    const JOBS: u64 = 4_096;
    let (counted, _) = bill(JOBS, |number| 50 + number * 37 % 101, 64).await;
    assert!(counted.gets * 8 <= JOBS, "{counted:?}");
}
