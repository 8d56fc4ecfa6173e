//! The cost of a job on Service Bus: frames and time of a worker on the tests' emulator, next to a bare loop on the same client.
//!
//! ```console
//! $ cargo bench -p jobqueue-bench --bench servicebus
//! ```

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark that fails ends")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fe2o3_amqp::link::receiver::CreditMode;
use fe2o3_amqp::sasl_profile::SaslProfile;
use fe2o3_amqp::types::definitions::{ReceiverSettleMode, SenderSettleMode};
use fe2o3_amqp::types::messaging::Body;
use fe2o3_amqp::types::primitives::Value;
use fe2o3_amqp::{Connection, Receiver, Session};
use jobqueue::servicebus::Options;
use jobqueue::{Event, JobError, QueueMessage, Storage, Worker};
use jobqueue_bench_harness::median;
use jobqueue_test_support::servicebus::ServiceBus;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// The messages that are under way at the same time.
const SLOTS: u32 = 32;

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "bench.thumbnail")]
struct Thumbnail {
    number: u64,
    url: String,
}

/// The figures of one run, per job.
#[derive(Clone, Copy)]
struct Cost {
    frames: f64,
    microseconds: f64,
}

/// An emulator, and a proxy before it that counts frames.
struct Bench {
    emulator: ServiceBus,
    blobs: Storage,
    proxy: u16,
    frames: Arc<AtomicU64>,
    jobs: u64,
}

impl Bench {
    async fn new(jobs: u64) -> Self {
        // A token costs a request or two; neither side is to be measured by them.
        let emulator = ServiceBus::start_with(&["--checks-tokens", "false"]);
        emulator.create_queue("thumbnails", serde_json::json!({ "LockDuration": "PT5M" }));
        let (proxy, frames) = counting_proxy(emulator.port()).await;
        Self { emulator, blobs: Storage::memory(), proxy, frames, jobs }
    }

    /// Returns the storage, by the proxy if `port` is its port.
    fn storage(&self, port: u16) -> Storage {
        let (before, after) = (format!(":{};", self.emulator.port()), format!(":{port};"));
        let text = self.emulator.connection_string().replacen(&before, &after, 1);
        Options::from_connection_string(&text).unwrap().storage(&self.blobs).unwrap()
    }

    async fn fill(&self) {
        let queue = self.storage(self.emulator.port()).queue::<Thumbnail>().await.unwrap();
        let url = "https://photos.example.org/albums/2026/summer/IMG_20260714_183012.jpeg";
        let jobs = (0..self.jobs).map(|number| Thumbnail { number, url: url.to_owned() });
        queue.send_all(jobs).await.unwrap().into_iter().for_each(|sent| drop(sent.unwrap()));
    }

    /// Measures the time straight, and the frames in another run by the proxy.
    async fn measure(&self, run: impl AsyncFn(u16) -> Duration) -> Cost {
        self.fill().await;
        let took = run(self.emulator.port()).await;
        self.fill().await;
        self.frames.store(0, Ordering::Relaxed);
        run(self.proxy).await;
        let jobs = self.jobs as f64;
        let left = self.emulator.queue("thumbnails")["counts"]["active"].as_u64().unwrap();
        assert_eq!(left, 0, "messages are left");
        Cost {
            frames: self.frames.load(Ordering::Relaxed) as f64 / jobs,
            microseconds: took.as_secs_f64() * 1e6 / jobs,
        }
    }

    /// Receives and completes all messages by the client alone: the service may deliver as many as there are slots, and each is
    /// completed by itself. The service's answers are not looked at, because the client has no way to them.
    async fn bare(&self, port: u16) -> Duration {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let connection = Connection::builder()
            .container_id("bare")
            .hostname("127.0.0.1")
            .scheme("amqp")
            .max_frame_size(65_536_u32)
            .sasl_profile(SaslProfile::Anonymous);
        let mut connection = connection.open_with_stream(stream).await.unwrap();
        let mut session = Session::begin(&mut connection).await.unwrap();
        let receiver = Receiver::builder()
            .name("bare")
            .source("thumbnails")
            .sender_settle_mode(SenderSettleMode::Unsettled)
            .receiver_settle_mode(ReceiverSettleMode::Second)
            .credit_mode(CreditMode::Auto(SLOTS));
        let mut receiver = receiver.attach(&mut session).await.unwrap();
        let began = Instant::now();
        for _ in 0..self.jobs {
            let delivery = receiver.recv::<Body<Value>>().await.unwrap();
            receiver.accept(&delivery).await.unwrap();
        }
        receiver.close().await.unwrap();
        let took = began.elapsed();
        session.end().await.unwrap();
        connection.close().await.unwrap();
        took
    }

    /// Runs a worker until the last message is completed.
    async fn framework(&self, port: u16) -> Duration {
        let (done, all) = (AtomicU64::new(0), Arc::new(Notify::new()));
        let (jobs, tell) = (self.jobs, Arc::clone(&all));
        let worker = Worker::builder(self.storage(port))
            .handle(|_: Thumbnail| async { Ok::<(), JobError>(()) })
            .concurrency(SLOTS as usize)
            .on_event(move |event| {
                let is_end = matches!(event, Event::Finished { .. });
                if is_end && done.fetch_add(1, Ordering::AcqRel) + 1 == jobs {
                    tell.notify_one();
                }
            });
        let began = Instant::now();
        let (tell_time, time) = tokio::sync::oneshot::channel();
        let stop = async move {
            all.notified().await;
            let _ = tell_time.send(began.elapsed());
        };
        let report = worker.build().unwrap().run_until(stop).await.unwrap();
        assert_eq!(report.completed, self.jobs, "{report:?}");
        time.await.unwrap()
    }
}

/// Passes bytes on, and counts frames; those without a body are left out.
async fn counting_proxy(port: u16) -> (u16, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (own, frames) = (listener.local_addr().unwrap().port(), Arc::<AtomicU64>::default());
    let counted = Arc::clone(&frames);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            client.set_nodelay(true).unwrap();
            server.set_nodelay(true).unwrap();
            let ((client_in, client_out), (server_in, server_out)) =
                (client.into_split(), server.into_split());
            tokio::spawn(pass(client_in, server_out, Arc::clone(&counted)));
            tokio::spawn(pass(server_in, client_out, Arc::clone(&counted)));
        }
    });
    (own, frames)
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, frames: Arc<AtomicU64>) {
    let (mut bytes, mut partial) = (vec![0; 65_536], Vec::new());
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
        partial.extend_from_slice(&bytes[..count]);
        let mut at = 0;
        while let Some(head) = partial.get(at..at + 8) {
            let is_frame = &head[..4] != b"AMQP";
            let length =
                if is_frame { u32::from_be_bytes(head[..4].try_into().unwrap()) as usize } else { 8 };
            if partial.len() < at + length {
                break;
            }
            frames.fetch_add(u64::from(is_frame && length > 8), Ordering::Relaxed);
            at += length;
        }
        partial.drain(..at);
    }
}

#[tokio::main]
async fn main() {
    // `cargo bench` says so; everybody else wants to see that it runs.
    let is_measured = std::env::args().any(|argument| argument == "--bench");
    let (jobs, rounds) = if is_measured { (5_000, 9) } else { (200, 1) };
    let bench = Bench::new(jobs).await;
    let mut costs = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        costs[0].push(bench.measure(async |port| bench.bare(port).await).await);
        costs[1].push(bench.measure(async |port| bench.framework(port).await).await);
    }
    let of =
        |figure: fn(&Cost) -> f64| costs.each_ref().map(|costs| median(costs.iter().map(figure).collect()));
    let (frames, time) = (of(|cost| cost.frames), of(|cost| cost.microseconds));
    println!("| {SLOTS} at once | frames a job | µs a job |\n|---|--:|--:|");
    println!("| bare loop | {:.2} | {:.0} |", frames[0], time[0]);
    println!("| worker | {:.2} | {:.0} |", frames[1], time[1]);
    println!("\n{:.2} times the frames, {:.2} times the time.", frames[1] / frames[0], time[1] / time[0]);
}
