//! Takes snapshots: one at a time, and in the background while there are requests.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jobqueue_admin::{Admin, QueueOverview, WorkerOverview};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::figures::{Demand, QueueFigures};
use super::lost::Readings;
use super::totals::{Counting, QueueRuns, Totals};
use super::{SnapshotSource, Snapshots};

/// The time after the last request during which the background task keeps refreshing.
const POLL_LINGER: Duration = Duration::from_secs(300);
/// The time after which a refresh fails. Waiting callers get the error, and the last snapshot stays.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(20);
/// The period over which rates are measured.
const RATE_WINDOW: Duration = Duration::from_secs(60);
/// The time for which demands are kept: twice the interval of workers' records, because a job that was just
/// fetched is not yet in a record.
const DEMAND_WINDOW: Duration = Duration::from_secs(30);

/// The figures of one moment.
#[derive(Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// The monotonic time before the figures were read.
    pub taken: Instant,
    /// The wall-clock time before the figures were read.
    pub as_of: Timestamp,
    /// The queues by name. A queue that could not be read is only in [`unreadable`](Self::unreadable).
    pub queues: BTreeMap<String, QueueFigures>,
    /// The queues that could not be read, or whose dead letters could not be counted, with the reasons.
    pub unreadable: BTreeMap<String, String>,
    /// The overviews of the admin core, including unreadable queues.
    pub overviews: Vec<QueueOverview>,
    /// The records of all workers, including stale records, or the reason why they could not be read. They
    /// may be in another service than the queues.
    pub workers: Result<Vec<WorkerOverview>, String>,
    /// The sums of the workers' counters since the first snapshot of this process. They begin at 0 and never
    /// fall.
    pub totals: Totals,
    /// The demands of each queue in the snapshots of the last 30 seconds, which is twice the interval of
    /// workers' records, or of 20 seconds more than [the interval](Snapshots::every) if that is longer. Empty
    /// while the records cannot be read.
    pub demands: BTreeMap<String, Vec<Demand>>,
    /// The number of operators' changes before the figures were read.
    pub(super) changes: u64,
}

/// The state that is carried from one snapshot to the next.
#[derive(Debug, Default)]
pub(super) struct Collected {
    counting: Counting,
    runs: VecDeque<(Instant, BTreeMap<String, QueueRuns>)>,
    demands: VecDeque<(Instant, BTreeMap<String, Demand>)>,
    slots: BTreeMap<String, f64>,
    readings: Readings,
}

/// The time of a snapshot by both clocks, and the number of operators' changes before it.
#[derive(Debug, Clone, Copy)]
struct SnapshotTime {
    taken: Instant,
    as_of: Timestamp,
    changes: u64,
    /// The interval of snapshots.
    every: Duration,
}

impl SnapshotTime {
    /// Returns the time for which figures are kept: `window`, or the longest time between two snapshots.
    fn at_least(&self, window: Duration) -> Duration {
        window.max(self.every.saturating_add(REFRESH_TIMEOUT))
    }
}

impl Snapshots {
    /// Waits for the running refresh, or starts one and waits for it.
    pub(super) async fn refresh(&self) {
        let done = {
            let mut state = self.state();
            match state.refreshing.clone().filter(|done| !done.is_cancelled()) {
                Some(done) => done,
                None => {
                    let done = CancellationToken::new();
                    state.refreshing = Some(done.clone());
                    // Runs in a separate task, so that other callers get the result if this caller gives up.
                    tokio::spawn(take(self.clone(), done.clone()));
                    done
                }
            }
        };
        done.cancelled().await;
    }

    /// Starts the task that refreshes in the background, unless it runs.
    pub(super) fn keep_polling(&self) {
        let mut state = self.state();
        state.last_request = Some(Instant::now());
        if !std::mem::replace(&mut state.is_polling, true) {
            tokio::spawn(poll(Arc::downgrade(&self.0), self.0.every));
        }
    }

    /// Returns false, and marks the background task as ended, if there was no request for [`POLL_LINGER`].
    fn is_wanted(&self) -> bool {
        let mut state = self.state();
        state.is_polling = state.last_request.is_some_and(|at| at.elapsed() < POLL_LINGER);
        state.is_polling
    }
}

async fn poll(source: std::sync::Weak<SnapshotSource>, every: Duration) {
    loop {
        let Some(snapshots) = source.upgrade().map(Snapshots) else { return };
        if !snapshots.is_wanted() {
            return;
        }
        // Accepts a snapshot that another caller has just taken.
        let _ = snapshots.within(every / 2).await;
        drop(snapshots);
        sleep(every).await;
    }
}

async fn take(snapshots: Snapshots, done: CancellationToken) {
    let _done = done.drop_guard();
    let (taken, changes) = (Instant::now(), snapshots.state().changes);
    let now = snapshots.0.admin.storage().runtime().clock().now();
    let as_of = Timestamp::try_from(now).unwrap_or(Timestamp::UNIX_EPOCH);
    let read = timeout(REFRESH_TIMEOUT, read(&snapshots.0.admin)).await;
    let read = read.unwrap_or_else(|_| Err(format!("no answer within {REFRESH_TIMEOUT:?}")));
    // Computed without the lock, for which every reader of figures waits: thousands of workers take a while.
    // Only this refresh uses what is collected.
    let mut collected = std::mem::take(&mut snapshots.state().collected);
    let computed = read.map(|(queues, workers)| {
        let moment = SnapshotTime { taken, as_of, changes, every: snapshots.0.every };
        Arc::new(collected.snapshot(moment, queues, workers))
    });
    if computed.is_err() {
        collected.readings.failed(taken);
    }
    let mut unread = None;
    let mut state = snapshots.state();
    state.collected = collected;
    state.stats.last_duration = taken.elapsed();
    match computed {
        Ok(snapshot) => {
            state.stats.succeeded += 1;
            state.stats.last_error = None;
            unread = snapshot.workers.as_ref().err().cloned();
            if snapshot.workers.is_ok() {
                state.last_with_workers = Some(Arc::clone(&snapshot));
            }
            state.last = Some(snapshot);
        }
        Err(error) => {
            state.stats.failed += 1;
            state.failed = Some((Instant::now(), changes));
            state.stats.last_error = Some(error);
        }
    }
    let error = state.stats.last_error.clone();
    drop(state);
    // Logs last, because a subscriber may panic.
    if let Some(error) = error {
        tracing::debug!(error, "figures not read");
    } else if let Some(error) = unread {
        tracing::debug!(error, "records of workers not read");
    }
}

type WorkerRecords = Result<Vec<WorkerOverview>, String>;

async fn read(admin: &Admin) -> Result<(Vec<QueueOverview>, WorkerRecords), String> {
    // `Debug` of an error has all causes in one line.
    let text = |error| format!("{error:?}");
    // The admin core leaves out records that do not arrive within 8 seconds: the exporter answers after 9.
    let (queues, workers) = futures_util::join!(admin.queues(), admin.all_workers());
    Ok((queues.map_err(text)?, workers.map_err(text)))
}

impl Collected {
    fn snapshot(
        &mut self,
        at: SnapshotTime,
        overviews: Vec<QueueOverview>,
        workers: WorkerRecords,
    ) -> Snapshot {
        let SnapshotTime { taken, as_of, changes, .. } = at;
        if let Ok(workers) = &workers {
            self.readings.succeeded(taken);
            self.counting.add(as_of, workers.iter().map(|worker| &worker.record));
            push_recent(&mut self.runs, at.at_least(RATE_WINDOW), (taken, self.counting.by_queue()));
        } else {
            self.readings.failed(taken);
        }
        let (mut queues, mut unreadable) = (BTreeMap::new(), BTreeMap::new());
        for overview in &overviews {
            if let Some(error) = &overview.error {
                unreadable.insert(overview.name.clone(), error.clone());
            }
            let Some(mut figures) = QueueFigures::of(overview, workers.as_deref().ok()) else { continue };
            if let Ok(all) = &workers {
                figures.add_lost(self.readings.lost_jobs(taken, overview, &figures, all), overview);
            }
            self.measure(&overview.name, &mut figures);
            queues.insert(overview.name.clone(), figures);
        }
        let demands = queues.iter().filter_map(|(name, figures)| Some((name.clone(), figures.demand()?)));
        push_recent(&mut self.demands, at.at_least(DEMAND_WINDOW), (taken, demands.collect()));
        let held =
            |name: &String| self.demands.iter().filter_map(|(_, all)| all.get(name)).copied().collect();
        let known = queues.iter().filter(|(_, figures)| figures.workers.is_some());
        let demands = known.map(|(name, _)| (name.clone(), held(name))).collect();
        let totals = self.counting.totals.clone();
        Snapshot { taken, as_of, queues, unreadable, overviews, workers, totals, demands, changes }
    }

    /// Adds the figures that need earlier snapshots: the rate, the run time, and the last known slots per
    /// worker.
    fn measure(&mut self, name: &str, figures: &mut QueueFigures) {
        let Some(workers) = &mut figures.workers else { return };
        match workers.slots_per_worker {
            Some(slots) => {
                self.slots.insert(name.to_owned(), slots);
            }
            None => workers.slots_per_worker = self.slots.get(name).copied(),
        }
        let Some((last, runs)) = self.runs.back().and_then(|(at, all)| Some((*at, *all.get(name)?))) else {
            return;
        };
        figures.run_seconds = runs.mean();
        let Some((first, all)) = self.runs.front().filter(|(first, _)| *first < last) else { return };
        let before = all.get(name).copied().unwrap_or_default();
        let lately = runs.since(&before);
        figures.rate = Some(lately.completed as f64 / (last - *first).as_secs_f64());
        figures.run_seconds = lately.mean().or(figures.run_seconds);
    }
}

/// Adds an entry, and removes entries that are older than `time`.
fn push_recent<T>(entries: &mut VecDeque<(Instant, T)>, time: Duration, entry: (Instant, T)) {
    entries.retain(|(at, _)| entry.0.saturating_duration_since(*at) <= time);
    entries.push_back(entry);
}

#[cfg(test)]
mod tests {
    use jobqueue::Storage;
    use jobqueue_admin::AccessLevel;

    use super::*;

    // review 34 b, C4
    #[tokio::test]
    async fn demand_is_held_from_one_snapshot_to_the_next() {
        let admin = Admin::builder(Storage::memory()).access(AccessLevel::Operate).build();
        admin.create_queue("mails").await.unwrap();
        let overviews = admin.queues().await.unwrap();
        let (mut collected, began) = (Collected::default(), Instant::now());
        let mut held_at = |seconds| {
            let taken = began + Duration::from_secs(seconds);
            let every = Duration::from_secs(60);
            let at = SnapshotTime { taken, as_of: Timestamp::UNIX_EPOCH, changes: 0, every };
            collected.snapshot(at, overviews.clone(), Ok(Vec::new())).demands["mails"].len()
        };
        assert_eq!(held_at(0), 1);
        assert_eq!(held_at(65), 2);
        assert_eq!(held_at(130), 2);
        assert_eq!(held_at(10_000), 1, "no snapshot was taken for hours");
    }
}
