//! A day of load with the autoscaler in the loop, in virtual time: workers come and go as `/scale` says.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{JobError, Storage};
use jobqueue_dashboard::scale::{self, Target};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, clock, in_memory, task};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::support::{get_json, present, snapshots};

const HOUR: u64 = 3600;
/// The time that a job runs, in seconds.
const RUN: u64 = 60;
const SLOTS: usize = 4;
const MOST: usize = 10;

/// The pause between two jobs by the hour of the day, in seconds; `None`: no jobs. Three peaks.
fn pause(hour: u64) -> Option<u64> {
    match hour {
        2..=4 | 11 | 22.. => None,
        8 | 15 | 19 => Some(3),
        0 | 1 | 5 => Some(120),
        _ => Some(20),
    }
}

/// The rules of a HorizontalPodAutoscaler under KEDA: nothing within a tolerance of a tenth, up at once, down
/// by the greatest wish of the last five minutes.
#[derive(Default)]
struct Autoscaler {
    wishes: VecDeque<(Instant, usize)>,
}

impl Autoscaler {
    fn replicas(&mut self, load: f64, replicas: usize) -> usize {
        let now = Instant::now();
        let is_near = replicas > 0 && (load / replicas as f64 - 1.0).abs() <= 0.1;
        let wish = if is_near { replicas } else { load.ceil() as usize };
        self.wishes.push_back((now, wish.min(MOST)));
        self.wishes.retain(|(at, _)| now - *at <= Duration::from_secs(300));
        self.wishes.iter().map(|(_, wish)| *wish).max().unwrap_or_default()
    }
}

type Running = (CancellationToken, JoinHandle<jobqueue::Report>);

/// The workers of the simulated cluster.
struct Cluster {
    storage: Storage,
    waits: Arc<Mutex<Vec<u64>>>,
    running: Vec<Running>,
    stopping: Vec<Running>,
    /// The replicas over time.
    history: Vec<(u64, usize)>,
}

impl Cluster {
    fn start(&mut self) {
        let waits = Arc::clone(&self.waits);
        let handler = move |task: Task| {
            let sent: u64 = task.data.parse().unwrap();
            let begun = seconds();
            waits.lock().unwrap().push(begun - sent);
            async {
                after(RUN).await;
                Ok::<_, JobError>(())
            }
        };
        let worker = present(&self.storage).concurrency(SLOTS).handle(handler);
        let worker = worker.shutdown_timeout(Duration::from_secs(2 * RUN)).build().unwrap();
        let stop = CancellationToken::new();
        let running = worker.run_until(stop.clone().cancelled_owned());
        self.running.push((stop, tokio::spawn(async move { running.await.unwrap() })));
    }

    fn scale(&mut self, replicas: usize) {
        if replicas != self.running.len() {
            self.history.push((seconds(), replicas));
        }
        while self.running.len() < replicas {
            self.start();
        }
        for worker in self.running.split_off(replicas) {
            worker.0.cancel();
            self.stopping.push(worker);
        }
    }

    /// Returns the number of changes in a part of the day.
    fn changes(&self, part: std::ops::Range<u64>) -> usize {
        let begun = self.history[0].0;
        self.history.iter().skip(1).filter(|(at, _)| part.contains(&(at - begun))).count()
    }

    /// Returns how often the replicas fell and rose again, or rose and fell again, within ten minutes.
    fn reversals(&self) -> usize {
        let steps = self.history.windows(2).map(|pair| (pair[1].0, pair[1].1 > pair[0].1));
        let steps: Vec<_> = steps.collect();
        steps.windows(2).filter(|pair| pair[0].1 != pair[1].1 && pair[1].0 - pair[0].0 < 600).count()
    }
}

fn seconds() -> u64 {
    use jobqueue::clock::Clock as _;
    clock().now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

/// Sends the jobs of a day; returns their number.
async fn produce(storage: Storage) -> usize {
    let queue = storage.queue::<Task>().await.unwrap();
    let (begun, mut count) = (Instant::now(), 0);
    loop {
        let hour = begun.elapsed().as_secs() / HOUR;
        if hour >= 24 {
            return count;
        }
        let Some(pause) = pause(hour) else {
            after(60).await;
            continue;
        };
        let mut job = task(format!("{count}"));
        job.data = seconds().to_string();
        let _ = queue.send(&job).await.unwrap();
        count += 1;
        after(pause).await;
    }
}

/// Asks `/scale` twice a minute for 25 hours. Every seventh answer is lost.
async fn control(router: Router, cluster: &mut Cluster) -> usize {
    let (mut autoscaler, mut refused) = (Autoscaler::default(), 0);
    for poll in 0..25 * HOUR / 30 {
        after(30).await;
        let (status, body) = get_json(&router, "/scale?queue=tasks").await;
        match status {
            _ if poll % 7 == 3 => {}
            StatusCode::OK => {
                let load = body["queues"]["tasks"]["load"].as_f64().unwrap();
                cluster.scale(autoscaler.replicas(load, cluster.running.len()));
            }
            _ => refused += 1,
        }
    }
    refused
}

/// Makes the queues unreadable for the exporter, and the records of workers unreadable and unwritable for
/// all, for twenty minutes at the morning peak.
async fn disturb(faulty: &Faulty) {
    after(8 * HOUR + 600).await;
    for operation in [Operation::ListQueues, Operation::PutBlob, Operation::GetBlob, Operation::ListBlobs] {
        faulty.plan_always(operation, Fault::Refuse(StoreErrorKind::Unavailable));
    }
    after(1200).await;
    faulty.heal();
}

#[tokio::test(start_paused = true)]
async fn day_of_load_neither_oscillates_nor_strands_work() {
    let account = in_memory();
    let _ = account.queue::<Task>().await.unwrap();
    let faulty = Faulty::new(&account);
    let router = scale::router(snapshots(&faulty.storage()), Target::new());
    let mut cluster = Cluster {
        storage: account.with_blobs_of(&faulty.storage()),
        waits: Arc::default(),
        running: Vec::new(),
        stopping: Vec::new(),
        history: vec![(seconds(), 0)],
    };
    let (sent, refused, ()) =
        tokio::join!(produce(account.clone()), control(router, &mut cluster), disturb(&faulty));
    assert!(refused >= 20, "{refused} answers told of the outage");
    let waits = cluster.waits.lock().unwrap().clone();
    assert_eq!(waits.len(), sent, "every job was started once");
    let longest = waits.iter().max().copied().unwrap();
    assert!(longest <= 1500, "a job waited for {longest} s; the outage took 1,200");
    let late = waits.iter().filter(|wait| **wait > 120).count();
    assert!(late * 10 < sent, "{late} of {sent} waited for more than two minutes");
    assert_eq!(cluster.running.len(), 0, "{:?}", cluster.history);
    let peak = cluster.history.iter().map(|(_, replicas)| *replicas).max().unwrap();
    assert!((5..=MOST).contains(&peak), "20 jobs run at a time at the peak: {:?}", cluster.history);
    // At the beginning of a peak some jobs wait until the workers are there; those take a worker or two more,
    // for a while.
    assert!(cluster.reversals() <= 6, "{:?}", cluster.history);
    assert!(cluster.history.len() < 50, "{} changes: {:?}", cluster.history.len(), cluster.history);
    for hour in [8, 15, 19] {
        let changes = cluster.changes(hour * HOUR + 2400..(hour + 1) * HOUR);
        assert_eq!(changes, 0, "a steady load needs no changes: {:?}", cluster.history);
    }
    let mut completed = 0;
    for (_, worker) in cluster.stopping {
        let report = worker.await.unwrap();
        assert_eq!(report.cancelled, 0);
        assert_eq!(report.abandoned, 0);
        completed += report.completed;
    }
    assert_eq!(completed, sent as u64);
}
