//! Sends and processes at full load, and measures requests, time and processor time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jobqueue_bench_harness::{Figures, Result, Unit, cpu_time};
use jobqueue_test_support::azurite::Azurite;
use jobqueue_test_support::canned::Canned;

use crate::job::Size;
use crate::proxy::{Log, Seen};
use crate::system::{HANDLERS, Kind, Place, System};

/// The number of slices of a measurement, and the minimum number of jobs in each: twice the number of
/// handlers, so that most run at full load.
const SLICES: u64 = 9;
const LEAST_JOBS: u64 = 128;

/// Returns the number of jobs of a size that are sent and processed.
pub(crate) fn jobs(size: Size, quick: bool) -> u64 {
    match (size, quick) {
        (_, true) => 32,
        (Size::Short, _) => 2_048,
        (Size::Kib64, _) => 256,
        (Size::Mib1, _) => 96,
    }
}

/// Counts the requests of one run through the proxy.
pub(crate) async fn requests(azurite: &Azurite, size: Size, quick: bool) -> Result<Figures> {
    let log = Log::default();
    let place = Place {
        queues: log.before(azurite.queue_endpoint()).await?,
        blobs: log.before(azurite.blob_endpoint()).await?,
        in_process: None,
    };
    let (jobs, mut figures) = (jobs(size, quick), Figures::default());
    for kind in Kind::BOTH {
        let system = System::open(kind, &place, size).await?;
        let opened = log.take().len();
        if size.is_offloaded() {
            // The container is created once in an account's life.
            system.send(1, size).await?;
            system.process(1, HANDLERS, || {}).await?;
            log.take();
        }
        system.send(jobs, size).await?;
        let sent = log.take();
        let (before, at_start) = (Arc::new(Mutex::new(Vec::new())), log.clone());
        let starting = Arc::clone(&before);
        let started = move || *starting.lock().unwrap_or_else(PoisonError::into_inner) = at_start.take();
        system.process(jobs, HANDLERS, started).await?;
        let processed = log.take();
        system.close().await?;
        let (kind, size) = (kind.name(), size.name());
        let each = |requests: usize| requests as f64 / jobs as f64;
        let starting = before.lock().unwrap_or_else(PoisonError::into_inner).len();
        figures.put(&format!("{kind}.requests_{size}"), each(sent.len() + processed.len()), Unit::Count);
        figures.put(
            &format!("{kind}.gets_{size}"),
            each(processed.iter().filter(|seen| seen.is_get()).count()),
            Unit::Count,
        );
        figures.put(&format!("{kind}.requests_start"), (opened + starting) as f64, Unit::Count);
        show(&sent);
        show(&processed);
    }
    Ok(figures)
}

/// Prints the requests by method and kind of target.
fn show(requests: &[Seen]) {
    let mut kinds = BTreeMap::<String, usize>::new();
    for seen in requests {
        let (method, target) = seen.line.split_once(' ').unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let kind = match path.trim_start_matches('/').split('/').nth(2) {
            Some("messages") => "messages",
            Some(_) => "blob",
            None if query.contains("comp=metadata") => "metadata",
            None => "queue or container",
        };
        *kinds.entry(format!("{method} {kind}")).or_default() += 1;
    }
    jobqueue_bench_harness::progress(&format!("    {kinds:?}"));
}

/// Measures the time of both systems, slice by slice in turn, so that other load on the machine affects both
/// alike. The figures are those of the middle slices.
pub(crate) async fn times(azurite: &Azurite, size: Size, quick: bool) -> Result<Figures> {
    let (place, mut figures) = (direct(azurite), Figures::default());
    let (slices, least) = if quick { (1, 32) } else { (SLICES, LEAST_JOBS) };
    let jobs = (jobs(size, quick) / slices).max(least);
    let mut taken = BTreeMap::<&str, Vec<(Duration, Duration)>>::new();
    for _ in 0..slices {
        for kind in order() {
            taken.entry(kind.name()).or_default().push(timed(&place, kind, size, jobs, HANDLERS).await?);
        }
    }
    // The ratio of neighbouring slices.
    let ours = taken.get(Kind::Jobqueue.name()).into_iter().flatten();
    let theirs = taken.get(Kind::Sdk.name()).into_iter().flatten();
    let ratios = ours.zip(theirs).map(|(our, their)| (our.0 + our.1).div_duration_f64(their.0 + their.1));
    let mut ratios: Vec<_> = ratios.collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let ratio = ratios.get(ratios.len() / 2).copied().unwrap_or_default();
    figures.put(&format!("jobqueue.ratio_total_{}", size.name()), ratio, Unit::Count);
    for (kind, taken) in taken {
        let send = middle(taken.iter().map(|(send, _)| *send));
        let process = middle(taken.iter().map(|(_, process)| *process));
        let total = middle(taken.iter().map(|(send, process)| *send + *process)) / jobs as u32;
        figures.rate(&format!("{kind}.send_{}", size.name()), jobs, send);
        figures.rate(&format!("{kind}.process_{}", size.name()), jobs, process);
        figures.put(&format!("{kind}.total_{}", size.name()), total.as_secs_f64() * 1e3, Unit::Milliseconds);
    }
    Ok(figures)
}

fn middle(times: impl Iterator<Item = Duration>) -> Duration {
    let mut times: Vec<_> = times.collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Returns the address without a proxy.
pub(crate) fn direct(azurite: &Azurite) -> Place {
    Place { queues: azurite.queue_endpoint().into(), blobs: azurite.blob_endpoint().into(), in_process: None }
}

/// Returns one order or the other, so that no system always comes second.
fn order() -> [Kind; 2] {
    let [first, second] = Kind::BOTH;
    if (jobqueue_bench_harness::nanos_now() / 1_000).is_multiple_of(2) {
        [first, second]
    } else {
        [second, first]
    }
}

/// Returns the time that sending and processing took.
pub(crate) async fn timed(
    place: &Place,
    kind: Kind,
    size: Size,
    jobs: u64,
    concurrency: usize,
) -> Result<(Duration, Duration)> {
    let system = System::open(kind, place, size).await?;
    // The connections are made and the code is warm.
    let warm = jobs.min(16);
    system.send(warm, size).await?;
    system.process(warm, concurrency, || {}).await?;
    let before = Instant::now();
    system.send(jobs, size).await?;
    let send = before.elapsed();
    let begin = Arc::new(Mutex::new(Instant::now()));
    let began = Arc::clone(&begin);
    let started = move || *began.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    system.process(jobs, concurrency, started).await?;
    let process = begin.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
    system.close().await?;
    Ok((send, process))
}

/// Measures the processor time of both with answers from this process.
pub(crate) async fn processor(quick: bool) -> Result<Figures> {
    let (jobs, mut figures) = (if quick { 200 } else { 20_000 }, Figures::default());
    for kind in order() {
        in_process(kind, jobs.min(2_000)).await?;
        let before = cpu_time();
        in_process(kind, jobs).await?;
        let used = (cpu_time() - before).as_secs_f64() / jobs as f64;
        figures.put(&format!("{}.cpu_short", kind.name()), used * 1e6, Unit::Microseconds);
    }
    Ok(figures)
}

/// Sends and processes this number of short jobs without a service.
pub(crate) async fn in_process(kind: Kind, jobs: u64) -> Result<()> {
    let place = Place {
        queues: "http://127.0.0.1:1/devstoreaccount1".into(),
        blobs: "http://127.0.0.1:2/devstoreaccount1".into(),
        in_process: Some(Arc::new(Canned::default())),
    };
    let system = System::open(kind, &place, Size::Short).await?;
    system.send(jobs, Size::Short).await?;
    system.process(jobs, HANDLERS, || {}).await
}
