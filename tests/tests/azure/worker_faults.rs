//! Lost, late and refused answers (FAULTS section 1) with a complete worker on the Azure storage, and Azurite
//! behind a proxy: the operation really happens, and the test checks what happens to the job.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::azure::Options;
use jobqueue::worker::CheckpointOutcome;
use jobqueue::{Context, Event, JobError, JobInfo, Queue, QueueMessage, Storage, Worker, WorkerBuilder};
use jobqueue_tests::azurite::{self, Azurite, LogOnFailure};
use jobqueue_tests::proxy::{Fault, Proxy};
use jobqueue_tests::running::Running;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, QueueMessage)]
#[message(
    queue = "tasks",
    kind = "task",
    lease = "4s",
    poison_threshold = 3,
    backoff(base = "1s", max = "1s")
)]
struct Task {
    text: String,
}

fn task(text: &str) -> Task {
    Task { text: text.to_owned() }
}

/// A worker's storage behind proxies, and the same storage without.
struct Bench {
    storage: Storage,
    direct: Storage,
    queues: Proxy,
    blobs: Proxy,
    name: String,
    runs: Runs,
    _log: LogOnFailure<'static>,
}

/// The id and the attempt of every run.
type Runs = Arc<Mutex<Vec<(String, u32)>>>;

impl Bench {
    async fn new() -> Self {
        let azurite = Azurite::shared();
        let queues = Proxy::start(azurite.queue_endpoint()).await;
        let blobs = Proxy::start(azurite.blob_endpoint()).await;
        let string = azurite::connection_string(
            &queues.endpoint(azurite.queue_endpoint()),
            &blobs.endpoint(azurite.blob_endpoint()),
        );
        let storage = open(&string).await;
        let direct = open(&azurite.connection_string()).await;
        let name = format!("faults-{}", uuid::Uuid::new_v4().simple());
        let runs = Runs::default();
        Self { storage, direct, queues, blobs, name, runs, _log: azurite.log_on_failure() }
    }

    async fn tasks(&self, storage: &Storage) -> Queue<Task> {
        storage.queue_named(&self.name).await.unwrap()
    }

    /// Sends without the proxy.
    async fn given(&self, text: &str) -> String {
        self.tasks(&self.direct).await.send(&task(text)).await.unwrap().id().to_owned()
    }

    fn worker(&self) -> WorkerBuilder {
        Worker::builder(self.storage.clone()).max_idle_delay(Duration::from_millis(300))
    }

    /// Returns a worker that only records its runs.
    async fn plain_worker(&self) -> Running {
        let runs = Arc::clone(&self.runs);
        let handler = move |_: Task, info: JobInfo| {
            let runs = Arc::clone(&runs);
            async move {
                note(&runs, &info);
                Ok::<(), JobError>(())
            }
        };
        Running::start(self.worker().handle_on(&self.name, handler)).await
    }

    fn runs(&self) -> Vec<(String, u32)> {
        self.runs.lock().unwrap().clone()
    }

    async fn left(&self) -> u64 {
        self.tasks(&self.direct).await.approximate_len().await.unwrap()
    }
}

async fn open(string: &str) -> Storage {
    Storage::open(Options::from_connection_string(string).unwrap()).await.unwrap()
}

fn note(runs: &Runs, info: &JobInfo) {
    runs.lock().unwrap().push((info.id.to_string(), info.attempt));
}

fn refusal(status: &str, code: &str, more: &str) -> Fault {
    let head = format!(
        "HTTP/1.1 {status}\r\nx-ms-request-id: 1\r\nx-ms-error-code: {code}\r\n{more}Content-Length: 0\r\n\r\n"
    );
    Fault::Answer(head.into_bytes())
}

/// F1: a put that was applied without an answer is sent again under the same id: two messages at most, one
/// job.
#[tokio::test]
async fn send_without_answer_makes_one_job() {
    let bench = Bench::new().await;
    let tasks = bench.tasks(&bench.storage).await;
    bench.queues.plan("POST", Fault::DropAnswer);
    let sent = tasks.send(&task("once")).await.unwrap();
    assert_eq!(bench.left().await, 2);
    let mut worker = bench.plain_worker().await;
    for _ in 0..2 {
        assert!(matches!(worker.ended().await.name(), "completed" | "duplicate"));
    }
    drop(worker.stop().await);
    assert_eq!(bench.left().await, 0);
    assert!(bench.runs().iter().all(|run| *run == (sent.id().to_owned(), 1)), "{:?}", bench.runs());
}

/// F2: a put that never arrived is sent again: exactly one message.
#[tokio::test]
async fn send_after_refused_connection_makes_one_message() {
    let bench = Bench::new().await;
    let tasks = bench.tasks(&bench.storage).await;
    bench.queues.plan("POST", Fault::Refuse);
    tasks.send(&task("once")).await.unwrap();
    assert_eq!(bench.left().await, 1);
}

/// F3: the sender waits as long as the service asks, and sends again.
#[tokio::test]
async fn throttled_send_is_sent_later() {
    let bench = Bench::new().await;
    let tasks = bench.tasks(&bench.storage).await;
    bench.queues.plan("POST", refusal("503 Busy", "ServerBusy", "Retry-After: 1\r\n"));
    tasks.send(&task("late")).await.unwrap();
    assert_eq!(bench.left().await, 1);
}

/// F4: a message that a get without answer has leased is delivered when that lease has run out, and costs no
/// attempt.
#[tokio::test]
async fn get_without_answer_costs_no_attempt() {
    for fault in [Fault::DropAnswer, Fault::Garble] {
        let bench = Bench::new().await;
        let id = bench.given("lost and found").await;
        bench.queues.plan("numofmessages", fault);
        let mut worker = bench.plain_worker().await;
        let ended = worker.ended().await;
        assert_eq!(ended.name(), "completed");
        assert_eq!(ended.job.unwrap().dequeue_count, 2);
        drop(worker.stop().await);
        assert_eq!(bench.runs(), [(id, 1)]);
        assert_eq!(bench.left().await, 0);
    }
}

/// F7, F8: a checkpoint that was applied without an answer makes the receipt worthless. The handler goes on
/// and is not cancelled, and its success is recorded: the message is delivered again and deleted without
/// running.
#[tokio::test]
async fn checkpoint_without_answer_does_not_rerun_the_job() {
    for fault in [Fault::DropAnswer, Fault::Hang, Fault::Truncate(40)] {
        let bench = Bench::new().await;
        let (runs, proxy, planned) = (Arc::clone(&bench.runs), bench.queues.clone(), fault.clone());
        let handler = move |_: Task, info: JobInfo, ctx: Context| {
            let (runs, proxy, fault) = (Arc::clone(&runs), proxy.clone(), planned.clone());
            async move {
                note(&runs, &info);
                proxy.plan("PUT", fault);
                assert_eq!(ctx.checkpoint(&1).await?, CheckpointOutcome::Unknown);
                assert!(!ctx.is_cancelled());
                Ok::<(), JobError>(())
            }
        };
        let mut worker = Running::start(bench.worker().handle_on(&bench.name, handler)).await;
        let id = bench.given("checkpointed").await;
        assert_eq!(worker.ended().await.name(), "completed_uncertain", "{fault:?}");
        assert_eq!(worker.ended().await.name(), "duplicate", "{fault:?}");
        drop(worker.stop().await);
        assert_eq!(bench.runs(), [(id, 1)], "{fault:?}");
        assert_eq!(bench.left().await, 0, "{fault:?}");
    }
}

/// F7: the same for a renewal in the background.
#[tokio::test]
async fn renewal_without_answer_does_not_rerun_the_job() {
    let bench = Bench::new().await;
    let (runs, proxy) = (Arc::clone(&bench.runs), bench.queues.clone());
    let handler = move |_: Task, info: JobInfo, ctx: Context| {
        let (runs, proxy) = (Arc::clone(&runs), proxy.clone());
        async move {
            note(&runs, &info);
            let before = proxy.count("PUT");
            proxy.plan("PUT", Fault::DropAnswer);
            while proxy.count("PUT") < before + 2 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            assert!(!ctx.is_cancelled());
            Ok::<(), JobError>(())
        }
    };
    let mut worker = Running::start(bench.worker().handle_on(&bench.name, handler)).await;
    let id = bench.given("renewed").await;
    assert_eq!(worker.ended().await.name(), "completed_uncertain");
    assert_eq!(worker.ended().await.name(), "duplicate");
    drop(worker.stop().await);
    assert_eq!(bench.runs(), [(id, 1)]);
}

/// F9: a delete that was applied without an answer is a success.
#[tokio::test]
async fn delete_without_answer_is_a_success() {
    for fault in [Fault::DropAnswer, Fault::Truncate(9)] {
        let bench = Bench::new().await;
        let mut worker = bench.plain_worker().await;
        bench.queues.plan("DELETE", fault);
        let id = bench.given("deleted").await;
        assert_eq!(worker.ended().await.name(), "completed");
        drop(worker.stop().await);
        assert_eq!(bench.runs(), [(id, 1)]);
        assert_eq!(bench.left().await, 0);
    }
}

/// F10: a first delete that finds nothing is not a success: another worker has ended the job.
#[tokio::test]
async fn deleted_message_is_a_lost_lease() {
    let bench = Bench::new().await;
    let direct = bench.tasks(&bench.direct).await;
    let handler = move |_: Task| {
        let direct = direct.clone();
        async move { direct.clear().await.map_err(JobError::retry) }
    };
    let mut worker = Running::start(bench.worker().handle_on(&bench.name, handler)).await;
    bench.given("taken away").await;
    assert_eq!(worker.ended().await.name(), "lease_lost");
    let report = worker.stop().await;
    assert_eq!(report.completed, 0);
    assert_eq!(report.lease_lost, 1);
}

/// F11: neither is a delete whose receipt is refused; the message is delivered again and done then.
#[tokio::test]
async fn delete_with_stale_receipt_is_a_lost_lease() {
    let bench = Bench::new().await;
    let mut worker = bench.plain_worker().await;
    bench.queues.plan("DELETE", refusal("400 No", "PopReceiptMismatch", ""));
    let id = bench.given("contested").await;
    assert_eq!(worker.ended().await.name(), "lease_lost");
    assert_eq!(worker.ended().await.name(), "completed");
    drop(worker.stop().await);
    assert_eq!(bench.runs(), [(id.clone(), 1), (id, 1)]);
}

/// F12: when the permission ends, handlers are cancelled together with their leases, the queue is not polled
/// in a hot loop, no secret is named, and work continues with a new permission.
#[tokio::test]
async fn work_stops_without_permission_and_resumes_with_it() {
    let bench = Bench::new().await;
    let (runs, started) = (Arc::clone(&bench.runs), Arc::new(Notify::new()));
    let signal = Arc::clone(&started);
    let handler = move |_: Task, info: JobInfo, ctx: Context| {
        let (runs, signal) = (Arc::clone(&runs), Arc::clone(&signal));
        async move {
            note(&runs, &info);
            let is_first = runs.lock().unwrap().len() == 1;
            if is_first {
                signal.notify_one();
                ctx.token().cancelled().await;
            }
            Ok::<(), JobError>(())
        }
    };
    let mut worker = Running::start(bench.worker().handle_on(&bench.name, handler)).await;
    let id = bench.given("interrupted").await;
    started.notified().await;
    let before = bench.queues.count("GET");
    bench.queues.outage(Some(refusal("403 No", "AuthenticationFailed", "")));
    let told = worker
        .until(|event| match event {
            Event::PollFailed { error, .. } => Some(error),
            _ => None,
        })
        .await;
    assert!(told.contains("AuthenticationFailed") && !told.contains(azurite::KEY), "{told}");
    let ended = worker.ended().await;
    assert_eq!(ended.name(), "lease_lost");
    let asked = bench.queues.count("GET") - before;
    assert!(asked < 30, "{asked} requests within one lease");
    bench.queues.outage(None);
    assert_eq!(worker.ended().await.name(), "completed");
    drop(worker.stop().await);
    assert_eq!(bench.runs(), [(id.clone(), 1), (id, 1)]);
}

/// A large payload whose blob was written without an answer, or at the second attempt, arrives complete and
/// leaves nothing.
#[tokio::test]
async fn a_blob_write_without_answer_spoils_no_payload() {
    for fault in [Fault::DropAnswer, Fault::Truncate(40), Fault::Refuse] {
        let bench = Bench::new().await;
        let tasks = bench.tasks(&bench.storage).await;
        let large = "x".repeat(200_000);
        // The container is there, so that the fault meets the blob.
        tasks.send(&task(&large)).await.unwrap();
        bench.blobs.plan("PUT", fault.clone());
        tasks.send(&task(&large)).await.unwrap();
        let right = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&right);
        let handler = move |task: Task| {
            *counted.lock().unwrap() += usize::from(task.text.len() == 200_000);
            async { Ok::<(), JobError>(()) }
        };
        let mut worker = Running::start(bench.worker().handle_on(&bench.name, handler)).await;
        for _ in 0..2 {
            assert_eq!(worker.ended().await.name(), "completed", "{fault:?}");
        }
        drop(worker.stop().await);
        assert_eq!(*right.lock().unwrap(), 2, "{fault:?}");
    }
}
