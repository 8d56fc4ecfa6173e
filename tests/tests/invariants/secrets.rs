//! What never stands in a log: I20, F92, F114.

use std::io;
use std::sync::{Arc, Mutex};

use jobqueue::{Context, JobError, SendOptions, Storage, memory};
use jobqueue_tests::jobs::{Task, after, worker};
use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone, Default)]
struct Capture(Arc<Mutex<Vec<u8>>>);

impl io::Write for Capture {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Capture {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

const SECRET: &str = "s3cret-freight";

/// A run with everything in it: success, failure, checkpoint, rejection, rubbish, a large payload. Returns the receipts.
async fn run(storage: &Storage) {
    let queue = storage.queue::<Task>().await.unwrap();
    let large = format!("{SECRET}{}", "x".repeat(70_000));
    for (name, data) in
        [("good", SECRET), ("bad", SECRET), ("large", large.as_str()), ("no\n\u{1b}[31mFAKE log", SECRET)]
    {
        let options = SendOptions::new().id(format!("id\n{name}"));
        let _ = queue.send_with(&Task { name: name.into(), data: data.into() }, options).await.unwrap();
    }
    let rubbish = jobqueue::storage::PutMessage::new(format!("rubbish {SECRET}"));
    storage.queues().put(&"tasks".parse().unwrap(), rubbish).await.unwrap();
    let handler = |task: Task, ctx: Context| async move {
        ctx.checkpoint(&format!("{SECRET} progress")).await?;
        match task.name.as_str() {
            "bad" if ctx.info().attempt < 2 => Err(JobError::retry("fails\n\u{1b}[31mERROR forged line")),
            "bad" => Err(JobError::dead_letter("no\r\nERROR forged line")),
            _ => Ok(()),
        }
    };
    let _ = worker(storage).handle(handler).build().unwrap().run_until(after(90)).await.unwrap();
}

fn check(log: &str) {
    assert!(log.contains("dead-lettered"), "the log is on");
    assert!(!log.contains(SECRET), "a payload or checkpoint is in the log");
    assert!(!log.contains("\u{1b}["), "an escape sequence got through");
    assert!(
        !log.lines().any(|line| line.starts_with("ERROR forged") || line.starts_with("FAKE")),
        "a line was forged"
    );
}

fn traced(test: impl Future<Output = ()>, paused: bool) -> String {
    let capture = Capture::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(capture.clone())
        .finish();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(paused).build().unwrap();
    tracing::subscriber::with_default(subscriber, || runtime.block_on(test));
    let log = capture.0.lock().unwrap().clone();
    String::from_utf8(log).unwrap()
}

#[test]
fn i20_f114_a_trace_of_a_run_in_memory_holds_no_payload_and_no_forged_line() {
    check(&traced(async { run(&memory::open()).await }, true));
}

#[test]
fn i20_f114_receipts_are_shown_nowhere() {
    let log = traced(
        async {
            let folder = tempfile::tempdir().unwrap();
            let path = format!("sqlite:{}", folder.path().join("jobs.db").display());
            let storage = Storage::connect(&path).await.unwrap();
            let queue = storage.queue::<Task>().await.unwrap();
            let _ = queue.send(&Task { name: "a".into(), data: SECRET.into() }).await.unwrap();
            let get = jobqueue::storage::GetMessages::new(1, std::time::Duration::from_secs(1));
            let received = storage.queues().get(&"tasks".parse().unwrap(), get).await.unwrap();
            let receipt = received.messages[0].message.receipt.clone();
            tracing::info!(?received, ?receipt, "shown on purpose");
            let shown = format!("{received:?} {receipt:?} {storage:?} {queue:?}");
            assert!(!shown.contains(receipt.expose()) && !shown.contains(SECRET), "{shown}");
        },
        false,
    );
    assert!(log.contains("PopReceipt(…)") && !log.contains(SECRET));
}
