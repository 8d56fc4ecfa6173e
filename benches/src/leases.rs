//! Measures the cost of holding 10,000 leases: the processor time of a worker whose handlers wait, and of the
//! bare update requests at the same pace.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jobqueue::storage::{GetMessages, LeasedMessage, MessageRef, UpdateMessage};
use jobqueue::{JobError, State, Worker};
use jobqueue_bench_harness::{Figures, Result, Seen, Setting, Subject, Unit, cpu_time};
use tokio::time::MissedTickBehavior;

use crate::message::Thumbnail;
use crate::subject::{Jobqueue, Running};

/// The default visibility timeout of a queue, and the average fraction of it after which a lease is renewed.
const VISIBILITY: Duration = Duration::from_secs(30);
const RENEWAL_FRACTION: f64 = 0.685;

async fn wait(_: Thumbnail, State(seen): State<Arc<Seen>>) -> std::result::Result<(), JobError> {
    seen.handled(0).await;
    std::future::pending().await
}

pub(crate) async fn leases(setting: &Setting) -> Result<Figures> {
    let (leases, seconds) = if setting.quick { (200, 1) } else { (10_000, 40) };
    let measured = Duration::from_secs(seconds);
    let mut figures = Figures::default();
    let worker_cpu = kept_by_worker(setting, leases, measured).await?;
    figures.put("leases_worker_cpu", worker_cpu, Unit::PercentOfCore);
    let bare_cpu = bare_updates(setting, leases, measured).await?;
    figures.put("leases_requests_cpu", bare_cpu, Unit::PercentOfCore);
    figures.put("leases_cpu", worker_cpu - bare_cpu, Unit::PercentOfCore);
    Ok(figures)
}

async fn open_filled(setting: &Setting, leases: u64) -> Result<(tempfile::TempDir, Jobqueue)> {
    let store = setting.store()?;
    let subject = Jobqueue::open(store.path()).await?;
    for first in (0..leases).step_by(1_000) {
        let jobs: Vec<Thumbnail> =
            (first..leases.min(first + 1_000)).map(|number| Jobqueue::job(number, 0)).collect();
        subject.send_all(&jobs).await?;
    }
    Ok((store, subject))
}

/// Measures several rounds of renewals. The renewals of the first round are spread over only 7 % of the
/// lease.
async fn kept_by_worker(setting: &Setting, leases: u64, measured: Duration) -> Result<f64> {
    let (_store, subject) = open_filled(setting, leases).await?;
    let seen = Arc::new(Seen::default());
    let worker = Worker::builder(subject.storage.clone())
        .state(Arc::clone(&seen))
        .concurrency(leases as usize + 1)
        .shutdown_timeout(Duration::ZERO)
        .cancel_grace(Duration::ZERO)
        .handle(wait);
    let running = Running::start(worker.build()?);
    seen.wait_for(leases).await?;
    let cpu = percent(measured, tokio::time::sleep(measured)).await;
    let _ = running.stop().await?;
    Ok(cpu)
}

async fn bare_updates(setting: &Setting, leases: u64, measured: Duration) -> Result<f64> {
    let (_store, subject) = open_filled(setting, leases).await?;
    let queue = subject.queue.name().clone();
    let store = Arc::clone(subject.storage.queues());
    let mut held: Vec<MessageRef> = Vec::new();
    while (held.len() as u64) < leases {
        let received = store.get(&queue, GetMessages::new(32, 10 * VISIBILITY)).await?;
        held.extend(received.messages.into_iter().map(|LeasedMessage { message, .. }| message));
    }
    let mut ticks = tokio::time::interval((VISIBILITY / leases as u32).mul_f64(RENEWAL_FRACTION));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let updates = async {
        let started = Instant::now();
        for message in held.iter().cycle() {
            ticks.tick().await;
            if started.elapsed() >= measured {
                break;
            }
            let (store, queue, message) = (Arc::clone(&store), queue.clone(), message.clone());
            tokio::spawn(async move {
                let change = UpdateMessage::new(10 * VISIBILITY);
                let _ = store.update(&queue, &message, change).await;
            });
        }
    };
    Ok(percent(measured, updates).await)
}

async fn percent(measured: Duration, work: impl Future<Output = ()>) -> f64 {
    let before = cpu_time();
    work.await;
    (cpu_time() - before).as_secs_f64() / measured.as_secs_f64() * 100.0
}
