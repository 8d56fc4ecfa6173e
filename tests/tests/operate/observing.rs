//! Events and spans in the life of a job, on the memory storage and in paused time, and what a tracer or a
//! listener that panics does to it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::trace::{Span, Step, TraceContext, Tracer};
use jobqueue::{
    Context, Event, JobError, JobInfo, QueueMessage, Runtime, State, Storage, Worker, WorkerBuilder,
};
use jobqueue_testing::faults::{Fault, Faulty};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "orders", kind = "order", poison_threshold = 2, backoff(base = "1s", max = "1s"))]
struct Order {
    number: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "invoices", kind = "invoice")]
struct Invoice {
    order: u32,
}

fn worker(storage: &Storage) -> WorkerBuilder {
    Worker::builder(storage.clone().with_runtime(Runtime::paused()))
}

/// Says whether a message was delivered after the delay that its sender has set.
fn waits(waited: Duration) -> &'static str {
    if waited >= Duration::from_secs(5) { "late" } else { "at once" }
}

type Lines = Arc<Mutex<Vec<String>>>;

fn listening(storage: Storage) -> (Storage, Lines) {
    let lines = Lines::default();
    let sink = Arc::clone(&lines);
    let storage = storage.on_event(move |event| {
        let line = match event {
            Event::Sent { queue, kind, messages, failed, .. } => {
                format!("sent {messages} {} to {queue}, {failed} failed", kind.as_deref().unwrap_or("-"))
            }
            Event::Received { queue, messages, .. } if *messages > 0 => {
                format!("received {messages} from {queue}")
            }
            Event::Started { job, waited, .. } => {
                format!("started {} attempt {} {}", job.kind, job.attempt, waits(*waited))
            }
            Event::Renewed { queue, .. } => format!("renewed on {queue}"),
            Event::NotRenewed { queue, .. } => format!("not renewed on {queue}"),
            Event::LeaseLost { queue, cause, .. } => format!("lost on {queue}: {}", cause.as_str()),
            Event::Finished { outcome, waited, .. } => {
                format!("finished {} {}", outcome.as_str(), waits(*waited))
            }
            Event::DeadLettered { job, reason, .. } => {
                format!("dead {} {reason}", job.as_ref().map_or("-", |job| &job.kind))
            }
            Event::Throttled { wait, .. } => format!("throttled, waits: {}", !wait.is_zero()),
            Event::StorageRequest { operation, queue, requests, error, .. } => {
                let queue = queue.as_ref().map_or("-", |queue| queue.as_str());
                format!("request {operation} {queue} {requests} {}", error.unwrap_or("-"))
            }
            _ => return,
        };
        sink.lock().unwrap().push(line);
    });
    (storage, lines)
}

fn without_requests(lines: &Lines) -> Vec<String> {
    lines.lock().unwrap().iter().filter(|line| !line.starts_with("request")).cloned().collect()
}

#[tokio::test(start_paused = true)]
async fn listener_of_a_storage_hears_the_life_of_a_job() {
    let (storage, lines) = listening(Storage::memory());
    let orders = storage.queue::<Order>().await.unwrap();
    orders.send(&Order { number: 1 }).delay(Duration::from_secs(5)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(6)).await;
    let fail = |_: Order| async { Err::<(), _>(JobError::retry("no paper")) };
    let worker = worker(&storage).handle(fail).build().unwrap();
    let stop = tokio::time::sleep(Duration::from_secs(60));
    drop(worker.run_until(stop).await.unwrap());
    assert_eq!(
        without_requests(&lines),
        [
            "sent 1 order to orders, 0 failed",
            "received 1 from orders",
            "started order attempt 1 late",
            "finished retried late",
            "received 1 from orders",
            "started order attempt 2 late",
            "dead order attempts_exhausted",
            "finished dead_lettered late",
        ]
    );
    let lines = lines.lock().unwrap();
    for request in ["put message orders 1 -", "get messages orders 1 -", "put message orders-poison 1 -"] {
        let line = format!("request {request}");
        assert!(lines.contains(&line), "{line} is not among {lines:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn renewed_lost_and_throttled_are_told() {
    let faults = Faulty::new(&Storage::memory());
    let (storage, lines) = listening(faults.storage());
    let orders = storage.queue::<Order>().await.unwrap();
    orders.send(&Order { number: 1 }).await.unwrap();
    let stolen = storage.clone();
    let handler = move |_: Order, ctx: Context| {
        let stolen = stolen.clone();
        async move {
            // Long enough for renewals at the default lease.
            tokio::time::sleep(Duration::from_secs(600)).await;
            stolen.queue::<Order>().await.unwrap().clear().await.unwrap();
            ctx.token().cancelled().await;
            Ok::<(), JobError>(())
        }
    };
    let report = worker(&storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.lease_lost, 1);
    let mut once = Some(Fault::Throttle(Duration::from_secs(2)));
    faults.on(jobqueue::storage::Operation::Put, move |_| once.take());
    orders.send(&Order { number: 2 }).await.unwrap();
    let lines = without_requests(&lines);
    let has = |line: &str| assert!(lines.iter().any(|told| told == line), "{line} is not among {lines:#?}");
    has("renewed on orders");
    has("lost on orders: taken");
    has("finished lease_lost at once");
    has("throttled, waits: true");
}

/// Notes what is started and ended, and the span that is current.
#[derive(Default)]
struct Recorder {
    spans: Mutex<Vec<String>>,
    last: std::sync::atomic::AtomicU64,
}

thread_local! {
    static CURRENT: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

struct Recorded {
    tracer: Arc<Recorder>,
    number: u64,
}

impl Span for Recorded {
    fn context(&self) -> Option<TraceContext> {
        TraceContext::new(7, self.number, 1)
    }

    fn tracestate(&self) -> Option<String> {
        Some("vendor=1".to_owned())
    }

    fn enter(&self, work: &mut dyn FnMut()) {
        let before = CURRENT.replace(self.number);
        work();
        CURRENT.set(before);
    }

    fn end(self: Box<Self>, outcome: Option<&'static str>, error: Option<&'static str>) {
        let line = format!("{} ended {} {}", self.number, outcome.unwrap_or("-"), error.unwrap_or("-"));
        self.tracer.spans.lock().unwrap().push(line);
    }
}

struct Recording(Arc<Recorder>);

impl Tracer for Recording {
    fn start(&self, step: &Step<'_>) -> Option<Box<dyn Span>> {
        let span = |context: Option<TraceContext>| context.map_or(0, |context| context.to_parts().1);
        let (name, details) = match step {
            Step::Create { .. } => ("create", String::new()),
            Step::Send { messages, created, .. } => ("send", format!(" {messages} of {}", created.len())),
            Step::Receive { messages, .. } if *messages == 0 => return None,
            Step::Receive { messages, .. } => ("receive", format!(" {messages}")),
            Step::Process { sender, tracestate, is_first, .. } => (
                "process",
                format!(" from {} {} first: {is_first}", span(*sender), tracestate.unwrap_or("-")),
            ),
            Step::Settle { messages, process, .. } => {
                ("settle", format!(" {messages} after {}", span(*process)))
            }
            _ => return None,
        };
        let number = self.0.last.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
        let line = format!("{number} in {}: {name}{details}", CURRENT.get());
        self.0.spans.lock().unwrap().push(line);
        Some(Box::new(Recorded { tracer: Arc::clone(&self.0), number }))
    }
}

fn traced(storage: Storage) -> (Storage, Arc<Recorder>) {
    let recorder = Arc::<Recorder>::default();
    (storage.with_tracer(Arc::new(Recording(Arc::clone(&recorder)))), recorder)
}

type Seen = Arc<Mutex<Vec<JobInfo>>>;

async fn bill(order: Order, ctx: Context, info: JobInfo, State(seen): State<Seen>) -> Result<(), JobError> {
    seen.lock().unwrap().push(info);
    ctx.queue::<Invoice>().await?.send(&Invoice { order: order.number }).await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn job_runs_in_the_span_of_its_tracer_and_sends_from_it() {
    let (storage, recorder) = traced(Storage::memory());
    storage.queue::<Order>().await.unwrap().send(&Order { number: 1 }).await.unwrap();
    let seen = Seen::default();
    let worker = worker(&storage).handle(bill).state(Arc::clone(&seen)).concurrency(1).build().unwrap();
    assert_eq!(worker.run_until_idle().await.unwrap().completed, 1);
    assert_eq!(
        *recorder.spans.lock().unwrap(),
        [
            "1 in 0: send 1 of 0",
            "1 ended - -",
            "2 in 0: receive 1",
            "2 ended - -",
            "3 in 0: process from 1 vendor=1 first: true",
            "4 in 3: send 1 of 0",
            "4 ended - -",
            "3 ended - -",
            "5 in 0: settle 1 after 3",
            "5 ended completed -",
        ]
    );
    let seen = seen.lock().unwrap();
    assert_eq!(seen[0].trace.to_parts().0, 7, "handlers and records see the span's context");
}

// H6
#[tokio::test(start_paused = true)]
async fn span_of_a_settlement_that_failed_has_the_kind_of_its_error() {
    let faulty = Faulty::new(&Storage::memory());
    let (storage, recorder) = traced(faulty.storage());
    storage.queue::<Order>().await.unwrap().send(&Order { number: 1 }).await.unwrap();
    faulty.plan_always(Operation::Update, Fault::Refuse(StoreErrorKind::Unauthorized));
    let fail = |_: Order| async { Err::<(), _>(JobError::retry("no paper")) };
    let worker = worker(&storage).handle(fail).build().unwrap();
    drop(worker.run_until(tokio::time::sleep(Duration::from_secs(1))).await.unwrap());
    let spans = recorder.spans.lock().unwrap();
    assert_eq!(spans.last().unwrap(), "4 ended lease_lost storage");
}

#[tokio::test(start_paused = true)]
async fn list_has_a_span_for_each_message_and_one_for_the_request() {
    let (storage, recorder) = traced(Storage::memory());
    let orders = storage.queue::<Order>().await.unwrap();
    for sent in orders.send_all([Order { number: 1 }, Order { number: 2 }]).await.unwrap() {
        sent.unwrap();
    }
    let spans = recorder.spans.lock().unwrap();
    assert_eq!(
        *spans,
        [
            "1 in 0: create",
            "2 in 0: create",
            "1 ended - -",
            "2 ended - -",
            "3 in 0: send 2 of 2",
            "3 ended - -"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn later_attempts_and_redriven_jobs_are_not_first() {
    let (storage, recorder) = traced(Storage::memory());
    let orders = storage.queue::<Order>().await.unwrap();
    orders.send(&Order { number: 1 }).await.unwrap();
    let fail = |_: Order| async { Err::<(), _>(JobError::retry("no paper")) };
    for _ in 0..2 {
        let worker = worker(&storage).handle(fail).build().unwrap();
        drop(worker.run_until(tokio::time::sleep(Duration::from_secs(60))).await.unwrap());
        let redriven = orders.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
        assert_eq!(redriven.moved.len(), 1);
    }
    let spans = recorder.spans.lock().unwrap();
    let firsts: Vec<_> = spans.iter().filter_map(|line| line.split("first: ").nth(1)).collect();
    assert_eq!(firsts, ["true", "false", "false", "false"]);
    let failed = spans.iter().filter(|line| line.ends_with("ended - handler_error")).count();
    assert_eq!(failed, 4);
}

/// Panics wherever it is asked.
struct Broken {
    in_start: bool,
}

impl Tracer for Broken {
    fn start(&self, _: &Step<'_>) -> Option<Box<dyn Span>> {
        assert!(!self.in_start, "a tracer that cannot start a span");
        Some(Box::new(BrokenSpan))
    }
}

struct BrokenSpan;

impl Span for BrokenSpan {
    fn context(&self) -> Option<TraceContext> {
        panic!("a span without a context")
    }

    fn enter(&self, work: &mut dyn FnMut()) {
        work();
        work();
        panic!("a span that cannot be left")
    }

    fn end(self: Box<Self>, _: Option<&'static str>, _: Option<&'static str>) {
        panic!("a span that cannot end")
    }
}

#[tokio::test(start_paused = true)]
async fn panicking_tracer_and_listener_harm_no_job() {
    for in_start in [true, false] {
        let storage = Storage::memory()
            .with_tracer(Arc::new(Broken { in_start }))
            .on_event(|_| panic!("a listener that panics"));
        storage.queue::<Order>().await.unwrap().send(&Order { number: 1 }).await.unwrap();
        let seen = Seen::default();
        let worker = worker(&storage).handle(bill).state(Arc::clone(&seen)).build().unwrap();
        assert_eq!(worker.run_until_idle().await.unwrap().completed, 1);
        assert_eq!(storage.queue::<Invoice>().await.unwrap().approximate_len().await.unwrap(), 1);
        assert_eq!(seen.lock().unwrap().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn panic_of_a_handler_passes_through_the_span() {
    let (storage, recorder) = traced(Storage::memory());
    storage.queue::<Order>().await.unwrap().send(&Order { number: 1 }).await.unwrap();
    let panics = |_: Order| async { if true { panic!("out of paper") } else { Ok::<(), JobError>(()) } };
    let worker = worker(&storage).handle(panics).build().unwrap();
    assert_eq!(worker.run_until_idle().await.unwrap().retried, 1);
    assert!(recorder.spans.lock().unwrap().iter().any(|line| line.ends_with("ended - panic")));
}
