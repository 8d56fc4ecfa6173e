//! Costs of a job in order where a log keeps the order: requests for blobs and written bytes, by the length
//! of the backlog and by the number of keys that stand still. On memory, in paused time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jobqueue::storage::{
    Blob, BlobListing, BlobName, BlobPowers, BlobProperties, BlobStore, ContainerName, LeaseId, Operation,
    PutBlob, StoreError,
};
use jobqueue::{JobError, JobInfo, SendOptions, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, task, worker};
use tokio::time::{Instant, sleep};

use crate::order::records::{run, steps};
use crate::order::{Step, Watch, logged, send, step};

const HOUR: Duration = Duration::from_secs(3_600);

#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    requests: u64,
    reads: u64,
    written: u64,
}

/// Counts the requests for blobs, and the bytes that are written.
#[derive(Debug, Clone)]
struct Counting {
    inner: Arc<dyn BlobStore>,
    tally: Arc<Mutex<Tally>>,
}

impl Counting {
    fn count(&self, reads: u64, written: usize) {
        let mut tally = self.tally.lock().unwrap();
        tally.requests += 1;
        tally.reads += reads;
        tally.written += written as u64;
    }
}

#[async_trait]
impl BlobStore for Counting {
    async fn create_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.inner.create_container(container).await
    }

    async fn delete_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.inner.delete_container(container).await
    }

    async fn put_blob(
        &self,
        blob: &BlobName,
        data: Bytes,
        options: PutBlob,
    ) -> Result<BlobProperties, StoreError> {
        self.count(0, data.len());
        self.inner.put_blob(blob, data, options).await
    }

    async fn get_blob(&self, blob: &BlobName, max_bytes: u64) -> Result<Blob, StoreError> {
        self.count(1, 0);
        self.inner.get_blob(blob, max_bytes).await
    }

    async fn blob_properties(&self, blob: &BlobName) -> Result<BlobProperties, StoreError> {
        self.count(1, 0);
        self.inner.blob_properties(blob).await
    }

    async fn delete_blob(&self, blob: &BlobName, lease: Option<&LeaseId>) -> Result<(), StoreError> {
        self.count(0, 0);
        self.inner.delete_blob(blob, lease).await
    }

    async fn list_blobs(
        &self,
        container: &ContainerName,
        prefix: &str,
        marker: Option<&str>,
    ) -> Result<BlobListing, StoreError> {
        self.count(1, 0);
        self.inner.list_blobs(container, prefix, marker).await
    }

    fn powers(self: Arc<Self>) -> BlobPowers {
        Arc::clone(&self.inner).powers()
    }
}

fn counted() -> (Storage, Arc<Mutex<Tally>>) {
    let (storage, tally) = (logged(), Arc::default());
    let blobs = Counting { inner: Arc::clone(storage.blobs()), tally: Arc::clone(&tally) };
    let counted = Storage::new(Arc::clone(storage.queues().store()), Arc::new(blobs), "counted");
    (counted.with_runtime(storage.runtime().clone()), tally)
}

/// Sends this many jobs of one key, one by one or as a list, and runs them. Returns the requests and the
/// kilobytes of each job.
async fn cost(jobs: u32, one_by_one: bool) -> (f64, f64) {
    let (storage, tally) = counted();
    let queue = steps(&storage).await;
    let list: Vec<Step> = (0..jobs).map(|number| step("a", number)).collect();
    if one_by_one {
        for step in &list {
            send(&queue, step).await;
        }
    } else {
        let all = list.iter().map(|step| (step, SendOptions::new().in_order()));
        assert!(queue.send_all(all).await.unwrap().iter().all(Result::is_ok));
    }
    let sent = *tally.lock().unwrap();
    let watch = Watch::default();
    let took = run(&storage, &watch, jobs as usize).await;
    watch.assert_in_order_of("a", jobs);
    let sum = *tally.lock().unwrap();
    let per_job = |number: u64| number as f64 / f64::from(jobs);
    println!(
        "{jobs} jobs: sent with {:.2} requests, {:.2} kB each; in all {:.2} requests, {:.2} reads, {:.2} kB each; {took:?}",
        per_job(sent.requests),
        per_job(sent.written) / 1e3,
        per_job(sum.requests),
        per_job(sum.reads),
        per_job(sum.written) / 1e3
    );
    (per_job(sum.requests), per_job(sum.written) / 1e3)
}

#[tokio::test(start_paused = true)]
async fn job_in_a_log_costs_the_same_at_any_backlog() {
    for (jobs, one_by_one) in [(10, true), (1_000, true), (10, false), (1_000, false), (4_000, false)] {
        let (requests, kilobytes) = cost(jobs, one_by_one).await;
        assert!(requests <= 6.0, "{requests:.1} requests a job with {jobs} jobs");
        assert!(kilobytes <= 16.0, "{kilobytes:.1} kB a job with {jobs} jobs");
    }
}

/// The first of each key is put back for an hour, and the next one waits in the worker.
#[tokio::test(start_paused = true)]
async fn keys_that_stand_still_cost_few_reads() {
    const SECONDS: u64 = 300;
    let (storage, tally) = counted();
    let queue = steps(&storage).await;
    let list: Vec<Step> =
        (0..2).flat_map(|number| (0..500).map(move |key| step(key.to_string(), number))).collect();
    let all = list.iter().map(|step| (step, SendOptions::new().in_order()));
    assert!(queue.send_all(all).await.unwrap().iter().all(Result::is_ok));
    let handler = |_: Step| async { Err::<(), _>(JobError::retry_after(HOUR, "the service is down")) };
    let worker = worker(&storage).circuit_breaker(None).handle(handler).build().unwrap();
    let measured = async {
        sleep(Duration::from_secs(60)).await;
        let before = tally.lock().unwrap().reads;
        sleep(Duration::from_secs(SECONDS)).await;
        tally.lock().unwrap().reads - before
    };
    let reads = tokio::select! {
        biased;
        reads = measured => reads,
        report = worker.run_until(sleep(HOUR)) => panic!("{report:?}"),
    };
    assert!(reads <= SECONDS * 10, "{reads} reads of logs in {SECONDS} s while nothing happened");
}

/// Many jobs that wait behind one that runs are found out about by one reader.
#[tokio::test(start_paused = true)]
async fn jobs_that_wait_behind_a_long_one_share_one_reader() {
    let (storage, tally) = counted();
    let queue = steps(&storage).await;
    let list: Vec<Step> = (0..250).map(|number| step("a", number)).collect();
    let all = list.iter().map(|step| (step, SendOptions::new().in_order()));
    assert!(queue.send_all(all).await.unwrap().iter().all(Result::is_ok));
    let handler = |_: Step| async {
        sleep(HOUR).await;
        Ok::<_, JobError>(())
    };
    let worker = worker(&storage).handle(handler).build().unwrap();
    let measured = async {
        sleep(Duration::from_secs(60)).await;
        let before = tally.lock().unwrap().reads;
        sleep(Duration::from_secs(300)).await;
        tally.lock().unwrap().reads - before
    };
    let reads = tokio::select! {
        biased;
        reads = measured => reads,
        report = worker.run_until(sleep(HOUR)) => panic!("{report:?}"),
    };
    assert!(reads < 100, "{reads} reads of the log of a job that runs");
}

/// A job that was sent twice runs for six hours, and its second message waits.
#[tokio::test(start_paused = true)]
async fn second_message_of_a_long_job_is_put_back_ever_less_often() {
    let faulty = Faulty::new(&logged());
    let queue = steps(&faulty.storage()).await;
    for _ in 0..2 {
        queue.send(&step("a", 0)).in_order().id("twice").await.unwrap();
    }
    let handler = |_: Step| async {
        sleep(HOUR * 6).await;
        Ok::<_, JobError>(())
    };
    let worker = worker(&faulty.storage()).handle(handler).build().unwrap();
    let report = worker.run_until(sleep(HOUR * 6 + Duration::from_secs(120))).await.unwrap();
    assert_eq!((report.completed, report.duplicates), (1, 1), "{report:?}");
    // The lease is renewed each 21 seconds.
    let updates = faulty.calls_of(Operation::Update);
    assert!(updates < 2_000, "{updates} changes of messages");
}

/// More jobs wait behind one that runs for an hour than a worker can hold.
#[tokio::test(start_paused = true)]
async fn jobs_beyond_those_in_memory_are_put_back_ever_less_often_behind_a_long_one() {
    const JOBS: u32 = 400;
    let faulty = Faulty::new(&logged());
    let queue = steps(&faulty.storage()).await;
    let all = (0..JOBS).map(|number| (step("a", number), SendOptions::new().in_order()));
    assert!(queue.send_all(all.collect::<Vec<_>>()).await.unwrap().iter().all(Result::is_ok));
    let (ran, began) = (Arc::new(Mutex::new(Vec::new())), Instant::now());
    let log = Arc::clone(&ran);
    let handler = move |step: Step, info: JobInfo| {
        let log = Arc::clone(&log);
        async move {
            log.lock().unwrap().push((step.number, info.dequeue_count, began.elapsed()));
            sleep(if step.number == 0 { HOUR } else { Duration::from_millis(1) }).await;
            Ok::<_, JobError>(())
        }
    };
    let worker = worker(&faulty.storage()).handle(handler).build().unwrap();
    let report = worker.run_until(sleep(HOUR + Duration::from_secs(120))).await.unwrap();
    assert_eq!(report.completed, u64::from(JOBS), "{report:?}");
    let ran = ran.lock().unwrap();
    assert!(ran.iter().map(|(number, ..)| *number).eq(0..JOBS), "they ran out of order");
    let deliveries = ran.iter().map(|(_, deliveries, _)| *deliveries).max().unwrap();
    // At an interval of a minute, and some more in the first minutes.
    assert!(deliveries < 90, "a message was delivered {deliveries} times");
    let stalled = ran[JOBS as usize - 1].2 - HOUR;
    assert!(stalled < Duration::from_secs(75), "the last ran {stalled:?} after the first");
}

/// Of a thousand jobs of ten seconds a worker holds 256. All others come back by the pace of the key, not as
/// if it were that of quick jobs.
#[tokio::test(start_paused = true)]
async fn jobs_of_a_long_and_slow_key_are_put_back_for_long() {
    let faulty = Faulty::new(&logged());
    let queue = steps(&faulty.storage()).await;
    let all = (0..1_000).map(|number| (step("a", number), SendOptions::new().in_order()));
    assert!(queue.send_all(all.collect::<Vec<_>>()).await.unwrap().iter().all(Result::is_ok));
    let handler = async |_: Step| {
        sleep(Duration::from_secs(10)).await;
        Ok::<_, JobError>(())
    };
    let worker = worker(&faulty.storage()).handle(handler).build().unwrap();
    let report = worker.run_until(sleep(Duration::from_secs(600))).await.unwrap();
    assert!(report.completed > 50, "{report:?}");
    // Half of them are renewals of the leases of those in memory.
    let updates = faulty.calls_of(Operation::Update) as u64 / report.completed;
    assert!(updates < 450, "{updates} changes of messages for each job");
}

/// Of many jobs behind one that runs for an hour the last ones are put back for more than a minute. No log is
/// written for that.
#[tokio::test(start_paused = true)]
async fn put_backs_of_jobs_far_behind_are_not_noted() {
    let (storage, tally) = counted();
    let queue = steps(&storage).await;
    let all = (0..1_000).map(|number| (step("a", number), SendOptions::new().in_order()));
    assert!(queue.send_all(all.collect::<Vec<_>>()).await.unwrap().iter().all(Result::is_ok));
    let handler = |_: Step| async {
        sleep(HOUR).await;
        Ok::<_, JobError>(())
    };
    let worker = worker(&storage).handle(handler).build().unwrap();
    let measured = async {
        sleep(Duration::from_secs(300)).await;
        let before = tally.lock().unwrap().requests;
        sleep(Duration::from_secs(120)).await;
        tally.lock().unwrap().requests - before
    };
    let requests = tokio::select! {
        biased;
        requests = measured => requests,
        report = worker.run_until(sleep(HOUR)) => panic!("{report:?}"),
    };
    assert!(requests < 60, "{requests} requests for blobs while nothing happened");
}

/// The payloads are gone, and each message is put back for a second, which takes long: after a second each
/// gives its slot to another, as long as a place to settle is free.
#[tokio::test(start_paused = true)]
async fn messages_that_are_put_back_for_long_take_as_many_slots_again() {
    let faulty = Faulty::new(&logged());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    for key in 0..20 {
        let large = Task { data: "x".repeat(200_000), ..task("a") };
        queue.send(&large).in_order().key(key.to_string()).await.unwrap();
    }
    storage.blobs().delete_container(&"jobqueue-payloads".parse().unwrap()).await.unwrap();
    faulty.plan_always(Operation::Update, Fault::DelayBefore(Duration::from_secs(20)));
    let handler = |_: Task| async { Ok::<_, JobError>(()) };
    let worker = worker(&storage).concurrency(2).handle(handler).build().unwrap();
    let running = tokio::spawn(worker.run_until(sleep(Duration::from_secs(15))));
    sleep(Duration::from_secs(10)).await;
    assert_eq!(faulty.calls_of(Operation::Update), 4, "those with a slot, and those with a place to settle");
    let _ = running.await.unwrap().unwrap();
}
