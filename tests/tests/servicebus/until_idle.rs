//! Workers that run until they are idle, on queues whose messages are late: they end only when nothing
//! visible is left.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::servicebus::Options;
use jobqueue::storage::{GetMessages, Operation, Storage, StoreErrorKind, UpdateMessage};
use jobqueue::{JobError, Report, Worker};
use jobqueue_testing::faults::{Fault, Faulty};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep_until, timeout};

use super::jobs::{Work, work};
use super::sessions::text;
use super::{Bench, MINUTE, options};

/// Longer than a get waits.
const LATE: Duration = Duration::from_millis(150);

async fn nothing(_: Work) -> Result<(), JobError> {
    Ok(())
}

async fn run(storage: &Storage, slots: usize) -> Report {
    let worker = Worker::builder(storage.clone()).concurrency(slots).handle(nothing).build().unwrap();
    timeout(2 * MINUTE, worker.run_until_idle()).await.expect("the worker does not end").unwrap()
}

impl Bench {
    /// Sends jobs of some keys in order, and one without an order.
    async fn send_some(&self, storage: &Storage) -> u64 {
        let queue = storage.queue::<Work>().await.unwrap();
        for number in 0..3 {
            for key in ["a", "b", "c"] {
                queue.send(&work(&format!("{key}{number}"))).key(key).in_order().await.unwrap();
            }
        }
        queue.send(&work("free")).await.unwrap();
        10
    }

    /// Opens the same storage over a network on which all that the service says is late.
    pub(super) async fn over_late_network(&self) -> Storage {
        let port = late_proxy(self.emulator.port()).await;
        let (before, after) = (format!(":{};", self.emulator.port()), format!(":{port};"));
        let text = self.emulator.connection_string().replacen(&before, &after, 1);
        Storage::from(Options::from_connection_string(&text).unwrap().with_blobs_of(&self.blobs).unwrap())
    }
}

/// Passes bytes on to a port, and what comes from there later.
async fn late_proxy(port: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
            let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                (client.into_split(), server.into_split());
            let (late, mut due) = tokio::sync::mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
            tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
            tokio::spawn(async move {
                let mut bytes = [0_u8; 4096];
                while let Ok(count @ 1..) = from_server.read(&mut bytes).await {
                    let _ = late.send((Instant::now() + LATE, bytes[..count].to_vec()));
                }
            });
            tokio::spawn(async move {
                while let Some((at, bytes)) = due.recv().await {
                    sleep_until(at).await;
                    if to_client.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    own
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_in_sessions_are_awaited_however_many_slots_are_free() {
    let bench = Bench::of_sessions();
    for slots in [1, 2, 8] {
        for round in 0..3 {
            let sent = bench.send_some(&bench.storage).await;
            let report = run(&bench.storage, slots).await;
            // Exactly: so many attaches that are refused cost no session that is held.
            assert_eq!(report.completed, sent, "{slots} slots, round {round}: {report:?}");
            assert_eq!(bench.count("active"), 0);
        }
    }
}

// The service looks for a session in a store.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_the_service_finds_late_are_awaited() {
    let bench = Bench::with(json!({ "RequiresSession": true }), &["--session-search", "120"]);
    let sent = bench.send_some(&bench.storage).await;
    assert_eq!(run(&bench.storage, 2).await.completed, sent);
    assert_eq!(bench.count("active"), 0);
}

#[tokio::test]
async fn sessions_and_messages_that_come_late_are_awaited() {
    let bench = Bench::of_sessions();
    let late = bench.over_late_network().await;
    let sent = bench.send_some(&bench.storage).await;
    let report = run(&late, 4).await;
    assert_eq!(report.completed, sent, "{report:?}");
    assert_eq!(bench.count("active"), 0, "{report:?}");
}

#[tokio::test]
async fn a_session_that_is_lost_meanwhile_is_awaited() {
    let bench = Arc::new(Bench::of_sessions());
    bench.send_some(&bench.storage).await;
    let (runs, other) = (Arc::new(std::sync::atomic::AtomicU32::new(0)), Arc::clone(&bench));
    let handler = move |_: Work| {
        if runs.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 4 {
            other.emulator.strike("detach", Some("work"));
        }
        async { Ok::<(), JobError>(()) }
    };
    let worker = Worker::builder(bench.another()).concurrency(2).handle(handler).build().unwrap();
    let report = timeout(2 * MINUTE, worker.run_until_idle()).await.expect("it does not end").unwrap();
    assert_eq!(bench.count("active"), 0, "{report:?}");
}

// One slot, and the session that comes first has nothing to do yet.
#[tokio::test]
async fn a_session_that_must_wait_hides_no_other() {
    let bench = Bench::of_sessions();
    let queue = bench.storage.queue::<Work>().await.unwrap();
    for key in ["a", "b"] {
        queue.send(&work(key)).key(key).in_order().await.unwrap();
    }
    let dying = bench.another();
    let both = bench.get_all(&dying, 2).await;
    let one = both.iter().find(|leased| text(leased).contains("\"a\"")).unwrap();
    let other = both.iter().find(|leased| text(leased).contains("\"b\"")).unwrap();
    let later = UpdateMessage::new(60 * MINUTE).ending_lease();
    dying.queues().update(&bench.queue, &one.message, later).await.unwrap();
    dying.queues().update(&bench.queue, &other.message, UpdateMessage::new(Duration::ZERO)).await.unwrap();
    // The session of `b` was held last, and comes last.
    bench.get_all(&dying, 1).await;
    drop(dying);
    let report = run(&bench.another(), 1).await;
    assert_eq!(report.completed, 1, "{report:?}");
    assert_eq!(bench.count("active"), 1, "{report:?}");
}

#[derive(Debug, Serialize, Deserialize, jobqueue::QueueMessage)]
#[message(queue = "first", kind = "first")]
struct First {
    jobs: u32,
}

// The worker has found the queue empty before the job puts something into it.
#[tokio::test]
async fn messages_that_a_job_puts_into_another_queue_are_awaited() {
    for requires_session in [false, true] {
        let bench = Bench::with(json!({ "RequiresSession": requires_session }), &[]);
        bench.emulator.create_queue("first", json!({}));
        let first = bench.storage.queue::<First>().await.unwrap();
        for jobs in 0..4 {
            first.send(&First { jobs }).await.unwrap();
        }
        let storage = bench.over_late_network().await;
        let queue = storage.queue::<Work>().await.unwrap();
        let handler = move |first: First| {
            let queue = queue.clone();
            async move {
                tokio::time::sleep(2 * LATE).await;
                for number in 0..first.jobs {
                    queue.send(&work(&number.to_string())).await?;
                }
                Ok::<(), JobError>(())
            }
        };
        let worker = Worker::builder(storage).concurrency(2).handle(handler).handle(nothing).build().unwrap();
        let report = timeout(2 * MINUTE, worker.run_until_idle()).await.expect("it does not end").unwrap();
        assert_eq!(report.completed, 10, "sessions: {requires_session}: {report:?}");
    }
}

// It was kept back for some seconds, and the next get, which found nothing, was believed.
#[tokio::test]
async fn a_job_that_is_kept_back_for_the_blobs_is_awaited() {
    for (requires_session, asked) in [(false, Operation::BlobProperties), (true, Operation::PutBlob)] {
        let bench = Bench::with(json!({ "RequiresSession": requires_session, "LockDuration": "PT5S" }), &[]);
        bench.storage.queue::<Work>().await.unwrap().send(&work("job")).await.unwrap();
        // Quiet: the emulator is asked in real time.
        let blobs = Faulty::quiet(&bench.blobs);
        let mut is_first = true;
        blobs.on(asked, move |call| {
            let is_refused = call.subject.contains("work") && std::mem::take(&mut is_first);
            is_refused.then_some(Fault::Refuse(StoreErrorKind::Unavailable))
        });
        let storage = Storage::from(options(&bench.emulator).with_blobs_of(blobs.storage()).unwrap());
        assert_eq!(run(&storage, 1).await.completed, 1, "sessions: {requires_session}");
    }
}

// The lock is longer than the test.
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_that_was_given_up_frees_the_session() {
    let bench = Bench::of_sessions_with(json!({ "LockDuration": "PT5M" }));
    for text in ["1", "2"] {
        bench.put_in("a", text).await;
    }
    let leased = bench.next().await;
    let held = bench.emulator.plant("complete", "hold");
    tokio::select! {
        biased;
        deleted = bench.delete(&leased.message) => panic!("{deleted:?}"),
        struck = async { tokio::task::block_in_place(|| held.wait(1)) } => assert_eq!(struck, 1),
    }
    let next = timeout(MINUTE, bench.next()).await.expect("the session stays locked");
    assert_eq!(text(&next), "2");
}

#[tokio::test]
async fn a_get_that_was_given_up_frees_the_session() {
    let bench = Bench::of_sessions_with(json!({ "LockDuration": "PT5M" }));
    bench.put_in("a", "1").await;
    let faulty = Faulty::new(&bench.blobs);
    let storage = Storage::from(options(&bench.emulator).with_blobs_of(faulty.storage()).unwrap());
    faulty.plan(Operation::PutBlob, 1, Fault::Hang);
    tokio::select! {
        biased;
        got = storage.queues().get(&bench.queue, GetMessages::new(1, MINUTE)) => panic!("{got:?}"),
        () = faulty_call(&faulty) => {}
    }
    let again = timeout(MINUTE, bench.get_all(&storage, 1)).await.expect("the session stays locked");
    assert_eq!(text(&again[0]), "1");
}

/// Waits until a blob was to be written.
async fn faulty_call(faulty: &Faulty) {
    while faulty.calls_of(Operation::PutBlob) == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
