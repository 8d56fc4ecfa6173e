//! Panics in application code other than the handler: each is a failed attempt, reported like any other, and
//! the queue continues.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use jobqueue::handler::{ExtractError, FromJob};
use jobqueue::storage::{Call, Intercepted, Interceptor, Operation, PutMessage, StoreError, StoreErrorKind};
use jobqueue::worker::CircuitBreaker;
use jobqueue::{Event, Job, JobError, Outcome, QueueMessage, Storage, WorkerBuilder};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{after, in_memory, worker};
use jobqueue_tests::log::Broken;
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use tower::Service;
use tower::layer::layer_fn;

/// A text whose decoding panics if it says so.
#[derive(Debug, Clone, Serialize)]
struct Touchy(String);

impl<'de> Deserialize<'de> for Touchy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        assert_ne!(text, "read", "boom");
        if text.is_empty() { Err(D::Error::custom("empty")) } else { Ok(Self(text)) }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "touchy", kind = "touchy")]
struct First {
    text: Touchy,
}

#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "touchy", kind = "touchy", version = 2, upgrade_from = First)]
#[message(poison_threshold = 3, backoff(base = "1s", max = "10s"))]
struct Second {
    #[message(with = rule)]
    text: Touchy,
}

impl From<First> for Second {
    fn from(first: First) -> Self {
        assert_ne!(first.text.0, "upgrade", "boom");
        Self { text: first.text }
    }
}

fn rule(text: &Touchy) -> Result<(), String> {
    assert_ne!(text.0, "rule", "boom");
    Ok(())
}

struct Argument;

impl FromJob for Argument {
    fn from_job(job: &Job) -> Result<Self, ExtractError> {
        assert_ne!(job.info().headers.get("at").map(String::as_str), Some("argument"), "boom");
        Ok(Self)
    }
}

async fn put(storage: &Storage, version: u32, text: &str) {
    let _ = storage.queue::<Second>().await.unwrap();
    let event = format!(
        r#"{{"specversion":"1.0","id":"{text}","source":"/test","type":"touchy","schemaversion":{version},"at":"{text}","data":{{"text":"{text}"}}}}"#
    );
    storage.queues().put(&"touchy".parse().unwrap(), PutMessage::new(event)).await.unwrap();
}

async fn handle(message: Second, _: Argument) -> Result<(), JobError> {
    if message.text.0 == "policy" { Err(JobError::retry("for the policy")) } else { Ok(()) }
}

fn touchy(storage: &Storage) -> WorkerBuilder {
    let policy = |error: &JobError, _: &jobqueue::JobInfo| {
        assert!(!error.to_string().contains("for the policy"), "boom");
        None
    };
    worker(storage).handle(handle).retry_policy(policy)
}

/// The ends of the deliveries of each job.
type Ends = Arc<Mutex<Vec<(Outcome, Option<String>)>>>;

fn ends() -> (Ends, impl Fn(&Event) + Send + Sync + 'static) {
    let ends = Ends::default();
    let sink = Arc::clone(&ends);
    (ends, move |event: &Event| {
        if let Event::Finished { outcome, error, .. } = event {
            sink.lock().unwrap().push((outcome.clone(), error.clone()));
        }
    })
}

// B10
#[tokio::test(start_paused = true)]
async fn a_panic_anywhere_is_a_failed_attempt_and_told() {
    for (version, place) in [(2, "read"), (1, "upgrade"), (2, "rule"), (2, "argument"), (2, "policy")] {
        let storage = in_memory();
        put(&storage, version, place).await;
        put(&storage, 2, "fine").await;
        let (ends, listen) = ends();
        let report = touchy(&storage).on_event(listen).build().unwrap().run_until(after(120)).await.unwrap();
        let counts = (report.completed, report.retried, report.dead_lettered, report.lease_lost);
        assert_eq!(counts, (1, 2, 1, 0), "{place}");
        let ends = ends.lock().unwrap().clone();
        assert_eq!(ends.len(), 4, "{place}: {ends:?}");
        let told = ends.iter().filter_map(|(_, error)| error.as_deref());
        let expected = if place == "policy" { "for the policy" } else { "boom" };
        assert!(told.clone().count() == 3 && told.clone().all(|error| error.contains(expected)), "{ends:?}");
        let letters = storage.queue::<Second>().await.unwrap().dead_letters().unwrap();
        let letter = letters.peek().await.unwrap().remove(0);
        assert_eq!(letter.reason.as_str(), "attempts_exhausted");
        assert_eq!(letter.attempts, 3);
        assert_eq!(&*letter.id, place);
    }
}

// B10: the one message that is tried while the circuit is open.
#[tokio::test(start_paused = true)]
async fn a_panic_of_the_circuits_probe_does_not_stop_the_polling() {
    for place in ["read", "rule", "argument", "policy"] {
        let storage = in_memory();
        for _ in 0..4 {
            put(&storage, 2, place).await;
        }
        let circuit = CircuitBreaker::new().failures(1).jobs(1);
        let circuit = circuit.pause(Duration::from_secs(1), Duration::from_secs(2));
        let worker = touchy(&storage).circuit_breaker(circuit).build().unwrap();
        let late = storage.clone();
        tokio::spawn(async move {
            after(300).await;
            put(&late, 2, "fine").await;
        });
        let report = worker.run_until(after(600)).await.unwrap();
        assert_eq!(report.completed, 1, "{place}");
        assert_eq!(report.dead_lettered, 4, "{place}");
    }
}

// B10
#[tokio::test(start_paused = true)]
async fn a_listener_that_panics_hinders_nothing() {
    let storage = in_memory();
    put(&storage, 2, "fine").await;
    put(&storage, 2, "read").await;
    let called = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&called);
    let listener = move |_: &Event| {
        flag.store(true, Ordering::Relaxed);
        panic!("boom")
    };
    let report = touchy(&storage).on_event(listener).build().unwrap().run_until(after(120)).await.unwrap();
    assert_eq!(report.completed, 1);
    assert_eq!(report.dead_lettered, 1);
    assert!(called.load(Ordering::Relaxed));
}

/// A service whose next clone panics if it is armed.
struct Fragile<S> {
    inner: S,
    armed: Arc<AtomicBool>,
}

impl<S: Clone> Clone for Fragile<S> {
    fn clone(&self) -> Self {
        assert!(!self.armed.swap(false, Ordering::Relaxed), "boom");
        Self { inner: self.inner.clone(), armed: Arc::clone(&self.armed) }
    }
}

impl<S: Service<Job>> Service<Job> for Fragile<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, job: Job) -> S::Future {
        self.inner.call(job)
    }
}

/// The message of the delivery that panicked cannot be put back before the worker has ended: its job runs
/// again, which is no clean end.
#[tokio::test(start_paused = true)]
async fn a_delivery_that_panicked_and_was_not_put_back_is_abandoned_once() {
    let faulty = Faulty::new(&in_memory());
    put(&faulty.storage(), 2, "fine").await;
    let armed = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&armed);
    let fragile = layer_fn(move |inner| Fragile { inner, armed: Arc::clone(&flag) });
    let builder = touchy(&faulty.storage()).layer(fragile).shutdown_timeout(Duration::ZERO);
    let worker = builder.build().unwrap();
    armed.store(true, Ordering::Relaxed);
    faulty.plan_always(Operation::Update, Fault::Hang);
    let report = worker.run_until(after(2)).await.unwrap();
    assert!(!armed.load(Ordering::Relaxed), "it panicked");
    assert_eq!(report.abandoned, 1);
}

// A panic is an answer that was lost: further requests delete the messages.
#[tokio::test(start_paused = true)]
async fn panics_during_common_deletions_stop_no_later_deletion() {
    let faulty = Faulty::new(&in_memory());
    for text in ["1", "2", "3", "4", "5", "6"] {
        put(&faulty.storage(), 2, text).await;
    }
    let mut left = 3_u32;
    faulty.on(Operation::DeleteAll, move |_| {
        left = left.checked_sub(1)?;
        panic!("boom")
    });
    let worker = touchy(&faulty.storage()).concurrency(1).build().unwrap();
    let report = worker.run_until(after(300)).await.unwrap();
    assert_eq!(report.completed, 6, "{report:?}");
    assert!(faulty.storage().queue::<Second>().await.unwrap().is_empty().await.unwrap());
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("boom");
    }
}

/// Answers no request for many deletions, and panics when it is given up.
#[derive(Debug)]
struct Silent;

impl Interceptor for Silent {
    async fn call_all<T: Send>(
        &self,
        call: Call<'_>,
        _: usize,
        perform: impl Future<Output = Vec<Result<T, StoreError>>> + Send,
    ) -> Vec<Result<T, StoreError>> {
        if call.operation == Operation::DeleteAll {
            let _panics = PanicsWhenDropped;
            return std::future::pending().await;
        }
        perform.await
    }
}

// A panic left its request counted, and after the second one nothing was deleted any more.
#[tokio::test(start_paused = true)]
async fn panics_of_common_requests_that_are_given_up_stop_no_later_delivery() {
    let storage = in_memory();
    for text in ["1", "2", "3", "4", "5", "6"] {
        put(&storage, 2, text).await;
    }
    let queues = Intercepted::queues(Arc::clone(storage.queues().store()), &Arc::new(Silent));
    let silent = Storage::new(queues, Arc::clone(storage.blobs()), "silent");
    let worker = touchy(&silent).concurrency(1).build().unwrap();
    let report = worker.run_until(after(3_600)).await.unwrap();
    assert_eq!(report.uncertain, 6, "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_panics_hinders_nothing() {
    let _broken = tracing::subscriber::set_default(Broken);
    let faulty = Faulty::new(&in_memory());
    let (ends, listen) = ends();
    let runs = Arc::<Mutex<u32>>::default();
    let counted = Arc::clone(&runs);
    let handler = move |message: Second, ctx: jobqueue::Context| {
        *counted.lock().unwrap() += u32::from(message.text.0 == "long");
        async move {
            if message.text.0 == "lost" {
                ctx.token().cancelled().await;
            } else {
                after(100).await;
            }
            Ok::<_, JobError>(())
        }
    };
    put(&faulty.storage(), 2, "lost").await;
    // The first fetches fail, and then the renewals of the first job.
    faulty.plan(Operation::Get, 1, Fault::Refuse(StoreErrorKind::Unavailable));
    faulty.plan_always(Operation::Update, Fault::Refuse(StoreErrorKind::Unavailable));
    let worker = worker(&faulty.storage()).handle(handler).on_event(listen).build().unwrap();
    let later = async {
        after(120).await;
        faulty.heal();
        put(&faulty.storage(), 2, "long").await;
    };
    let (report, ()) = tokio::join!(worker.run_until(after(600)), later);
    assert!(report.unwrap().completed >= 1);
    assert_eq!(*runs.lock().unwrap(), 1, "its lease was renewed: {:?}", ends.lock().unwrap());
}

// PL1
#[tokio::test(start_paused = true)]
async fn a_panic_of_the_storage_is_a_request_that_failed() {
    let faulty = Faulty::new(&in_memory());
    put(&faulty.storage(), 2, "fine").await;
    let mut calls = 0;
    faulty.on(Operation::Get, move |_| {
        calls += 1;
        assert!(calls > 3, "boom");
        None
    });
    let report = touchy(&faulty.storage()).build().unwrap().run_until(after(600)).await.unwrap();
    assert_eq!(report.completed, 1);
}
