//! Messages that come without being asked for: credit that stays with the service while a worker waits.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::storage::{GetMessages, PutMessage, Storage};
use jobqueue::{JobError, Report, Worker};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::jobs::{Work, work};
use super::late_answers::until;
use super::{Bench, ENDS, MINUTE};

/// Longer than any test: who waits for so long is not woken by polling.
const NEVER: Duration = Duration::from_secs(3600);

impl Bench {
    /// Returns the credit of all links from the queue.
    fn credit(&self) -> u64 {
        let links = self.emulator.links();
        let from_queue = links
            .as_array()
            .unwrap()
            .iter()
            .filter(|link| link["entity"] == "work" && link["role"] == "receiver");
        from_queue.map(|link| link["credit"].as_u64().unwrap()).sum()
    }

    async fn until_credit(&self, wanted: u64) {
        self.until(|credit| credit == wanted).await;
    }

    pub(crate) async fn until(&self, is_so: impl Fn(u64) -> bool) {
        let waiting = async {
            while !is_so(self.credit()) {
                sleep(Duration::from_millis(20)).await;
            }
        };
        let waited = timeout(MINUTE, waiting).await;
        assert!(waited.is_ok(), "the credit is {}", self.credit());
    }

    async fn get_at_once(&self, storage: &Storage) -> usize {
        storage.queues().get(&self.queue, GetMessages::new(8, MINUTE)).await.unwrap().messages.len()
    }
}

/// A worker in the background.
struct Running(oneshot::Sender<()>, JoinHandle<Report>);

impl Running {
    async fn shutdown(self) -> Report {
        self.0.send(()).unwrap();
        self.1.await.unwrap()
    }
}

/// Starts a worker with so many slots that reports each job, and goes on with it by a permit.
fn start(bench: &Bench, slots: usize) -> (Running, mpsc::UnboundedReceiver<String>, Arc<Semaphore>) {
    let (begun, jobs) = mpsc::unbounded_channel();
    let permits = Arc::new(Semaphore::new(0));
    let go_on = Arc::clone(&permits);
    let handler = move |job: Work| {
        let (begun, go_on) = (begun.clone(), Arc::clone(&go_on));
        async move {
            begun.send(job.name).unwrap();
            go_on.acquire().await.unwrap().forget();
            Ok::<(), JobError>(())
        }
    };
    let worker =
        Worker::builder(bench.storage.clone()).concurrency(slots).max_idle_delay(NEVER).handle(handler);
    let (stop, stopped) = oneshot::channel::<()>();
    let running = worker.build().unwrap().run_until(async { drop(stopped.await) });
    let running = tokio::spawn(async { running.await.unwrap() });
    (Running(stop, running), jobs, permits)
}

async fn next(jobs: &mut mpsc::UnboundedReceiver<String>) -> String {
    timeout(MINUTE, jobs.recv()).await.expect("the job did not begin").unwrap()
}

#[tokio::test]
async fn an_arrival_wakes_an_idle_worker_without_polling() {
    let bench = Bench::new();
    let queue = bench.another().queue::<Work>().await.unwrap();
    let (worker, mut jobs, permits) = start(&bench, 3);
    permits.add_permits(10);
    for name in ["a", "b", "c"] {
        bench.until(|credit| credit > 0).await;
        // The job before is completed by a call.
        while bench.count("active") > 0 {
            sleep(Duration::from_millis(20)).await;
        }
        let before = bench.emulator.last_call();
        // Longer than several polls would take that begin at 100 ms.
        sleep(Duration::from_secs(1)).await;
        assert_eq!(bench.emulator.last_call(), before, "something was requested while nothing was there");
        queue.send(&work(name)).await.unwrap();
        assert_eq!(next(&mut jobs).await, name);
    }
    let report = worker.shutdown().await;
    assert_eq!(report.completed, 3, "{report:?}");
    assert_eq!(bench.credit(), 0, "a message would be sent to nobody");
}

#[tokio::test]
async fn the_service_has_credit_for_free_slots_only() {
    let bench = Bench::new();
    let queue = bench.another().queue::<Work>().await.unwrap();
    let (worker, mut jobs, permits) = start(&bench, 2);
    bench.until_credit(2).await;
    for name in ["a", "b", "c", "d"] {
        queue.send(&work(name)).await.unwrap();
    }
    let mut begun = [next(&mut jobs).await, next(&mut jobs).await];
    begun.sort();
    assert_eq!(begun, ["a", "b"]);
    bench.until_credit(0).await;
    // Both slots are in use; another process gets the others at once.
    assert_eq!(bench.get_at_once(&bench.another()).await, 2);
    permits.add_permits(2);
    bench.until_credit(2).await;
    let _ = worker.shutdown().await;
}

#[tokio::test]
async fn a_busy_worker_drains_nothing_and_completes_in_ranges() {
    const JOBS: usize = 200;
    let bench = Bench::new();
    let queue = bench.another().queue::<Work>().await.unwrap();
    let names: Vec<_> = (0..JOBS).map(|number| work(&number.to_string())).collect();
    queue.send_all(&names).await.unwrap().into_result().unwrap();
    let before = bench.emulator.frames();
    let (worker, mut jobs, permits) = start(&bench, 32);
    // All messages that came at once end at once.
    for _ in 0..JOBS {
        next(&mut jobs).await;
        if jobs.is_empty() {
            permits.add_permits(JOBS);
        }
    }
    let report = worker.shutdown().await;
    assert_eq!(report.completed, JOBS as u64, "{report:?}");
    let [drains, settlements] = ["drains", "dispositions"].map(|name| {
        let now = bench.emulator.frames();
        now[name].as_u64().unwrap() - before[name].as_u64().unwrap()
    });
    // One drain ends the credit of the worker, which is idle now and then: far from the service, or on a busy
    // machine.
    assert!(drains <= JOBS as u64 / 8, "{drains} drains");
    assert!(settlements < JOBS as u64 * 3 / 4, "{settlements} settlements of {JOBS} messages");
}

#[tokio::test]
async fn an_idle_worker_survives_the_end_of_its_link() {
    for end in ENDS {
        let bench = Bench::new();
        let queue = bench.another().queue::<Work>().await.unwrap();
        let (worker, mut jobs, permits) = start(&bench, 1);
        permits.add_permits(10);
        bench.until_credit(1).await;
        assert!(bench.emulator.strike(end, Some("work")) > 0);
        while let Err(error) = queue.send(&work("after")).await {
            assert!(error.is_retryable(), "{end}: {error:?}");
        }
        assert_eq!(next(&mut jobs).await, "after", "{end}");
        let _ = worker.shutdown().await;
    }
}

#[tokio::test]
async fn message_that_is_not_fetched_goes_back() {
    let bench = Bench::new();
    let _subscription = bench.store().subscribe(&bench.queue).unwrap();
    assert_eq!(bench.get_at_once(&bench.storage).await, 0);
    bench.until_credit(8).await;
    let other = bench.another();
    for text in ["a", "b"] {
        other.queues().put(&bench.queue, PutMessage::new(text)).await.unwrap();
    }
    // They came; as nobody fetches them, they go back, and the credit ends.
    bench.until_credit(0).await;
    let mut got = 0;
    let all = async {
        while got < 2 {
            got += bench.get_at_once(&other).await;
        }
    };
    timeout(MINUTE, all).await.expect("a message stayed with a process that does not want it");
}

#[tokio::test]
async fn credit_ends_when_nobody_waits_any_more() {
    let bench = Bench::new();
    let subscription = bench.store().subscribe(&bench.queue).unwrap();
    assert_eq!(bench.get_at_once(&bench.storage).await, 0);
    bench.until_credit(8).await;
    drop(subscription);
    bench.until_credit(0).await;
    let other = bench.another();
    other.queues().put(&bench.queue, PutMessage::new("a")).await.unwrap();
    assert_eq!(bench.get_at_once(&other).await, 1);
}

#[tokio::test]
async fn early_messages_answer_the_next_get_in_full() {
    let bench = Bench::new();
    let mut subscription = bench.store().subscribe(&bench.queue).unwrap();
    let other = bench.another();
    for round in 0..20 {
        assert_eq!(bench.get_at_once(&bench.storage).await, 0, "round {round}");
        let texts = (0..5).map(|number| PutMessage::new(number.to_string())).collect();
        for put in other.queues().put_all(&bench.queue, texts).await {
            put.unwrap();
        }
        let mut got = Vec::new();
        while got.len() < 5 {
            let options = GetMessages::new(3, MINUTE);
            let messages = bench.store().get(&bench.queue, options).await.unwrap().messages;
            if messages.is_empty() {
                timeout(MINUTE, subscription.wait()).await.expect("no word of a message");
            }
            assert!(messages.len() <= 3, "round {round}: more than was asked for");
            got.extend(messages);
        }
        for leased in got {
            bench.delete(&leased.message).await.unwrap();
        }
    }
    assert_eq!(bench.count("active"), 0);
}

#[tokio::test]
async fn messages_for_a_get_that_was_dropped_are_given_back() {
    let bench = Bench::new();
    let other = bench.another();
    other.queues().put(&bench.queue, PutMessage::new("a")).await.unwrap();
    let held = bench.emulator.plant("deliver", "hold");
    tokio::select! {
        got = bench.store().get(&bench.queue, GetMessages::new(1, MINUTE)) => panic!("got before it came: {got:?}"),
        () = until(|| held.hits() == 1) => {}
    }
    held.release();
    let again = async { while bench.get_at_once(&other).await == 0 {} };
    timeout(MINUTE / 2, again).await.expect("the message stayed under a lock that nobody wants");
}

#[tokio::test]
async fn connections_end_with_the_last_handle() {
    let bench = Bench::new();
    let other = bench.another();
    other.queues().put(&bench.queue, PutMessage::new("a")).await.unwrap();
    assert!(!bench.emulator.links().as_array().unwrap().is_empty());
    drop(other);
    let ended = async {
        while !bench.emulator.links().as_array().unwrap().is_empty() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(MINUTE, ended).await.expect("a connection without owner stays open");
}

// A link that ended over miscounted credit left what was on its way to the end of its lock.
#[tokio::test(flavor = "multi_thread")]
async fn many_slots_take_no_message_beyond_their_credit() {
    const JOBS: usize = 500;
    let bench = Bench::new();
    let queue = bench.storage.queue::<Work>().await.unwrap();
    let names: Vec<_> = (0..JOBS).map(|number| work(&number.to_string())).collect();
    queue.send_all(&names).await.unwrap().into_result().unwrap();
    let (worker, mut jobs, permits) = start(&bench, 32);
    permits.add_permits(JOBS);
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < JOBS {
        seen.insert(next(&mut jobs).await);
    }
    let report = worker.shutdown().await;
    assert_eq!(report.completed, JOBS as u64, "{report:?}");
    assert_eq!(report.uncertain, 0, "{report:?}");
    assert_eq!(bench.count("active"), 0);
}
