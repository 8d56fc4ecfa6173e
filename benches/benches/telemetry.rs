//! Measures the cost of telemetry: throughput and allocations of 64 handlers on SQLite, without it, with all
//! spans, and with one trace in a hundred. The handlers do nothing, which shows the cost of each job, or wait
//! for 5 ms, as for an answer from elsewhere.
//!
//! ```console
//! $ cargo bench -p jobqueue-bench --bench telemetry
//! ```

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark that fails ends")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jobqueue::{JobError, QueueMessage, Storage, Worker};
use jobqueue_bench_harness::median;
use jobqueue_opentelemetry::Telemetry;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider, SpanData, SpanExporter};
use serde::{Deserialize, Serialize};

/// Counts allocations, and leaves them to the system.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "bench.thumbnail")]
struct Thumbnail {
    number: u64,
    url: String,
}

/// Drops what it gets: the exporter's network is not what is measured.
#[derive(Debug)]
struct Discard;

impl SpanExporter for Discard {
    async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
        Ok(())
    }
}

const MODES: [&str; 4] = ["off", "metrics", "metrics and one trace in a hundred", "metrics and every span"];

fn telemetry(mode: &str) -> Option<Telemetry> {
    let sampler = match mode {
        "off" => return None,
        "metrics and every span" => Sampler::AlwaysOn,
        _ => Sampler::TraceIdRatioBased(0.01),
    };
    let tracers = SdkTracerProvider::builder().with_sampler(sampler).with_batch_exporter(Discard).build();
    let reader = PeriodicReader::builder(InMemoryMetricExporter::default()).build();
    let meters = SdkMeterProvider::builder().with_reader(reader).build();
    let builder = Telemetry::builder().tracer_provider(&tracers).meter_provider(&meters);
    Some(builder.spans(mode != "metrics").build())
}

/// Returns jobs per second, and allocations per job.
async fn measure(mode: &str, jobs: u64, duration: Duration) -> (f64, f64) {
    let folder = tempfile::tempdir().unwrap();
    let plain =
        Storage::connect(&format!("sqlite:{}", folder.path().join("jobs.db").display())).await.unwrap();
    let queue = plain.queue::<Thumbnail>().await.unwrap();
    let url = "https://photos.example.org/albums/2026/summer/IMG_20260714_183012.jpeg";
    let messages = (0..jobs).map(|number| Thumbnail { number, url: url.to_owned() });
    queue.send_all(messages).await.unwrap().into_iter().for_each(|sent| drop(sent.unwrap()));

    let telemetry = telemetry(mode);
    let storage = telemetry.as_ref().map_or(plain.clone(), |telemetry| telemetry.observe(plain));
    let handler = move |_: Thumbnail| async move {
        if !duration.is_zero() {
            tokio::time::sleep(duration).await;
        }
        Ok::<(), JobError>(())
    };
    let worker = Worker::builder(storage).concurrency(64).handle(handler).build().unwrap();
    let (before, began) = (ALLOCATIONS.load(Ordering::Relaxed), Instant::now());
    assert_eq!(worker.run_until_idle().await.unwrap().completed, jobs);
    let (took, allocations) = (began.elapsed(), ALLOCATIONS.load(Ordering::Relaxed) - before);
    (jobs as f64 / took.as_secs_f64(), allocations as f64 / jobs as f64)
}

#[tokio::main]
async fn main() {
    // `cargo bench` says so; everybody else wants to see that it runs.
    let is_measured = std::env::args().any(|argument| argument == "--bench");
    let (jobs, rounds) = if is_measured { (20_000, 15) } else { (500, 1) };
    println!("| handlers | telemetry | jobs/s | of off | allocations per job |\n|---|---|--:|--:|--:|");
    compare("that do nothing", jobs, rounds, Duration::ZERO).await;
    compare("of 5 ms", jobs / 4, rounds.div_ceil(3), Duration::from_millis(5)).await;
}

/// Measures all modes in turn, and prints the median of each and of its ratios to its neighbour without
/// telemetry.
async fn compare(handlers: &str, jobs: u64, rounds: usize, duration: Duration) {
    let mut figures = vec![(Vec::new(), Vec::new()); MODES.len()];
    for round in 0..rounds {
        // In another order each time, so that no mode always comes after the same one.
        for place in 0..MODES.len() {
            let mode = (place + round) % MODES.len();
            let (rate, allocations) = measure(MODES[mode], jobs, duration).await;
            figures[mode].0.push(rate);
            figures[mode].1.push(allocations);
        }
    }
    let off = figures[0].0.clone();
    for (mode, (rates, allocations)) in MODES.iter().zip(figures) {
        let ratio = median(rates.iter().zip(&off).map(|(rate, off)| 100.0 * rate / off).collect());
        let (rate, allocations) = (median(rates), median(allocations));
        println!("| {handlers} | {mode} | {rate:.0} | {ratio:.1} % | {allocations:.1} |");
    }
}
