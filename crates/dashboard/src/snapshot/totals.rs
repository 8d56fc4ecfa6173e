//! Sums of the workers' counters. The sums never fall, although workers come and go.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use jobqueue_admin::{Counters, HISTOGRAM_BOUNDS, ListeningQueue, WorkerRecord};
use jobqueue_storage::text::visible;

/// The kind used for messages without a handler, because senders can invent any number of kinds.
const OTHER_KINDS: &str = "other";
/// The maximum number of relayed kinds that are counted under their own names. Senders choose these names.
const MAX_RELAYED_KINDS: usize = 200;
/// The number of workers beyond which the counters of absent workers are forgotten.
const MAX_SEEN_WORKERS: usize = 10_000;

/// A queue and a kind.
type Key = (String, String);

/// The sums by queue and kind of the deliveries that ended after the first snapshot of this process. The sum
/// of a kind for which a worker has a handler begins at 0.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    kinds: BTreeMap<Key, KindTotals>,
}

/// The totals, and the counters from which they are computed.
#[derive(Debug, Default)]
pub(super) struct Counting {
    pub(super) totals: Totals,
    /// The kinds that relays have forwarded, each with its queue.
    relayed: BTreeSet<Key>,
    /// The counters in the last record of each worker.
    last_counters: BTreeMap<String, BTreeMap<Key, KindTotals>>,
    /// The run times of all workers, including runs before the first snapshot.
    runs: BTreeMap<String, QueueRuns>,
    /// The time of the last snapshot.
    last_snapshot: Option<Timestamp>,
}

/// The sums of one kind on one queue.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct KindTotals {
    /// Completed jobs.
    pub completed: u64,
    /// Failed attempts that were followed by a retry.
    pub retried: u64,
    /// Dead-lettered messages.
    pub dead_lettered: u64,
    /// The dead-lettered messages whose jobs were cancelled.
    pub cancelled: u64,
    /// Deliveries that ended otherwise.
    pub other: u64,
    /// The [other](Self::other) deliveries whose lease was lost.
    pub lease_lost: u64,
    /// The sum of the run times of all handlers, in seconds.
    pub run_seconds: f64,
    /// The number of run times in each class of [`HISTOGRAM_BOUNDS`], and above the last bound.
    pub run_times: [u64; HISTOGRAM_BOUNDS.len() + 1],
}

/// The sums of one queue from which rates are computed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct QueueRuns {
    pub(super) completed: u64,
    runs: u64,
    seconds: f64,
}

impl QueueRuns {
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            completed: self.completed.saturating_sub(before.completed),
            runs: self.runs.saturating_sub(before.runs),
            seconds: (self.seconds - before.seconds).max(0.0),
        }
    }

    pub(super) fn mean(&self) -> Option<f64> {
        (self.runs > 0).then(|| self.seconds / self.runs as f64)
    }
}

impl Totals {
    /// Returns the sums, by queue and kind.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &KindTotals)> {
        self.kinds.iter().map(|((queue, kind), totals)| (queue.as_str(), kind.as_str(), totals))
    }
}

impl Counting {
    /// Adds the workers' counts since the last snapshot.
    pub(super) fn add<'a>(
        &mut self,
        now: Timestamp,
        records: impl Iterator<Item = &'a WorkerRecord> + Clone,
    ) {
        for record in records.clone() {
            let counted = self.counters(record);
            let before = self.last_counters.insert(record.id.clone(), counted.clone());
            // The first record that is read of a worker may not be its first record. Its counts are new only
            // if the worker started after the last snapshot. The clocks may differ, so the worker's run time
            // is compared with the time between the snapshots.
            let is_new = self
                .last_snapshot
                .is_some_and(|last| run_time(record).is_some_and(|ran| ran <= now.duration_since(last)));
            for (key, totals) in counted {
                let new = totals.since(before.as_ref().and_then(|before| before.get(&key)));
                let runs = self.runs.entry(key.0.clone()).or_default();
                runs.runs += new.run_times.iter().sum::<u64>();
                runs.seconds += new.run_seconds;
                if before.is_some() || is_new {
                    runs.completed += new.completed;
                    self.totals.kinds.entry(key).or_default().sum(&new);
                }
            }
        }
        self.last_snapshot = Some(now);
        if self.last_counters.len() > MAX_SEEN_WORKERS {
            let present: BTreeSet<&str> = records.map(|record| record.id.as_str()).collect();
            self.last_counters.retain(|id, _| present.contains(id.as_str()));
        }
    }

    /// Returns the counters of a worker by queue and kind, and creates the sum of each kind that the worker
    /// handles. A series that appears with its first count shows no rise to Prometheus.
    fn counters(&mut self, record: &WorkerRecord) -> BTreeMap<Key, KindTotals> {
        let mut known = BTreeSet::new();
        for queue in &record.queues {
            let kinds = queue.named_kinds().chain([OTHER_KINDS]);
            known.extend(kinds.map(|kind| (queue.name.clone(), kind.to_owned())));
        }
        let mut counted = BTreeMap::<_, KindTotals>::new();
        for counters in &record.counters {
            // A relay forwards kinds of senders, which may have any characters.
            let key = (counters.queue.clone(), visible(&counters.kind, &[]));
            let is_named = known.contains(&key) || self.is_relayed(record, &key);
            let key = if is_named { key } else { (key.0, OTHER_KINDS.to_owned()) };
            counted.entry(key).or_default().sum(&counters.into());
        }
        for key in known {
            self.totals.kinds.entry(key).or_default();
        }
        counted
    }

    /// Returns whether the kind is relayed from the queue and counted under its own name.
    fn is_relayed(&mut self, record: &WorkerRecord, key: &Key) -> bool {
        let (queue, kind) = key;
        // A message that is not a job has an empty kind.
        let takes = |of: &ListeningQueue| of.name == *queue && of.takes(kind) && !kind.is_empty();
        if !record.queues.iter().any(takes) {
            return false;
        }
        if self.relayed.len() < MAX_RELAYED_KINDS {
            self.relayed.insert(key.clone());
        }
        self.relayed.contains(key)
    }

    pub(super) fn by_queue(&self) -> BTreeMap<String, QueueRuns> {
        self.runs.clone()
    }
}

/// Returns how long a worker had run when it wrote its record, by its own clock.
fn run_time(record: &WorkerRecord) -> Option<SignedDuration> {
    let (started, written) = (record.started.parse().ok()?, record.written.parse::<Timestamp>().ok()?);
    Some(written.duration_since(started))
}

impl From<&Counters> for KindTotals {
    fn from(counters: &Counters) -> Self {
        let mut run_times = [0; HISTOGRAM_BOUNDS.len() + 1];
        run_times.iter_mut().zip(&counters.run_times).for_each(|(to, from)| *to = *from);
        Self {
            completed: counters.completed,
            retried: counters.retried,
            dead_lettered: counters.dead_lettered,
            cancelled: counters.cancelled,
            other: counters.other,
            lease_lost: counters.lease_lost,
            run_seconds: counters.run_seconds,
            run_times,
        }
    }
}

impl KindTotals {
    fn sum(&mut self, more: &Self) {
        self.completed += more.completed;
        self.retried += more.retried;
        self.dead_lettered += more.dead_lettered;
        self.cancelled += more.cancelled;
        self.other += more.other;
        self.lease_lost += more.lease_lost;
        self.run_seconds += more.run_seconds;
        self.run_times.iter_mut().zip(more.run_times).for_each(|(to, more)| *to += more);
    }

    fn since(&self, before: Option<&Self>) -> Self {
        let Some(before) = before else { return self.clone() };
        let mut run_times = self.run_times;
        run_times.iter_mut().zip(before.run_times).for_each(|(to, less)| *to = to.saturating_sub(less));
        Self {
            completed: self.completed.saturating_sub(before.completed),
            retried: self.retried.saturating_sub(before.retried),
            dead_lettered: self.dead_lettered.saturating_sub(before.dead_lettered),
            cancelled: self.cancelled.saturating_sub(before.cancelled),
            other: self.other.saturating_sub(before.other),
            lease_lost: self.lease_lost.saturating_sub(before.lease_lost),
            run_seconds: (self.run_seconds - before.run_seconds).max(0.0),
            run_times,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ops::Range;

    use super::*;

    /// Returns the record of a worker, written at second 6,010 or at its start if that is later.
    fn worker(id: &str, started: i64, completed: u64) -> WorkerRecord {
        let written = at(started.max(6_010)).to_string();
        let started = at(started).to_string();
        serde_json::from_value(serde_json::json!({"id": id, "name": "w", "host": "h", "pid": 1, "version": "0", "started": started,
            "written": written, "interval_seconds": 15.0, "queues": [{"name": "mails", "kinds": ["mail", "news"]}], "slots": 1,
            "draining": false, "running": [], "running_total": 0, "counters": [{"queue": "mails", "kind": "mail",
            "completed": completed, "retried": 1, "dead_lettered": 0, "other": 0, "run_seconds": completed as f64,
            "run_times": [completed]}]}))
        .unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn completed(totals: &Counting, kind: &str) -> Option<u64> {
        totals.totals.iter().find(|(_, of, _)| *of == kind).map(|(_, _, totals)| totals.completed)
    }

    #[test]
    fn kinds_that_a_relay_forwards_are_counted_by_their_names() {
        let mut relay = worker("a", 10, 0);
        relay.queues[0].kinds = vec!["*".to_owned()];
        let mut totals = Counting::default();
        totals.add(at(6_000), [relay.clone()].iter());
        assert_eq!(completed(&totals, "*"), None, "no job has this kind");
        relay.counters[0].completed = 7;
        totals.add(at(6_010), [relay.clone()].iter());
        assert_eq!(completed(&totals, "mail"), Some(7));
        assert_eq!(completed(&totals, "other"), Some(0));

        let template = worker("a", 10, 1).counters.remove(0);
        let of_kind = |kind: String| {
            let mut counters = template.clone();
            counters.kind = kind;
            counters
        };
        relay.counters = (0..2 * MAX_RELAYED_KINDS).map(|number| of_kind(number.to_string())).collect();
        relay.counters.push(of_kind(String::new()));
        totals.add(at(6_020), [relay.clone()].iter());
        assert_eq!(completed(&totals, "0"), Some(1));
        assert_eq!(
            completed(&totals, "other"),
            Some(MAX_RELAYED_KINDS as u64 + 2),
            "kinds above the bound, and a message that is not a job"
        );
        assert_eq!(totals.totals.iter().count(), MAX_RELAYED_KINDS + 1);
    }

    // review 34 b, C5
    #[test]
    fn relayed_kinds_have_no_control_characters() {
        let mut relay = worker("a", 10, 0);
        relay.queues[0].kinds = vec!["*".to_owned()];
        relay.counters[0].kind = "mail\r\u{1b}[31m".to_owned();
        let mut totals = Counting::default();
        totals.add(at(6_000), [relay.clone()].iter());
        relay.counters[0].completed = 7;
        totals.add(at(6_010), [relay].iter());
        assert_eq!(completed(&totals, "mail\\r\\u{1b}[31m"), Some(7));
    }

    #[test]
    fn only_deliveries_since_the_first_snapshot_count() {
        let mut totals = Counting::default();
        totals.add(at(6_000), [worker("a", 10, 500)].iter());
        assert_eq!(completed(&totals, "mail"), Some(0));
        assert_eq!(completed(&totals, "news"), Some(0), "a kind has a sum before its first job");
        assert_eq!(totals.by_queue()["mails"].mean(), Some(1.0), "run times are known at once");
        totals.add(at(6_010), [worker("a", 10, 507), worker("b", 6_005, 3)].iter());
        assert_eq!(completed(&totals, "mail"), Some(10));
    }

    #[test]
    fn new_worker_counts_whatever_its_clock_shows() {
        let mut totals = Counting::default();
        totals.add(at(6_000), [].iter());
        // It has run for 8 seconds, and its clock is a minute behind.
        let mut worker = worker("a", 5_942, 7);
        worker.written = at(5_950).to_string();
        totals.add(at(6_010), [worker].iter());
        assert_eq!(completed(&totals, "mail"), Some(7));
    }

    /// Each counter is compared with the last one of its worker, which is looked up, and the pages compare
    /// sums of kinds.
    // D12
    #[test]
    fn snapshot_reads_each_record_at_most_twice_however_many_workers_there_are() {
        let template = worker("a", 10, 0);
        let of = |workers: Range<usize>, completed: u64| -> Vec<WorkerRecord> {
            let record = |worker: usize| {
                let mut record = template.clone();
                record.id = worker.to_string();
                record.counters[0].completed = completed;
                record
            };
            workers.map(record).collect()
        };
        let (mut totals, read) = (Counting::default(), Cell::new(0));
        let mut reads = |second: i64, records: &[WorkerRecord]| {
            read.set(0);
            totals.add(at(second), records.iter().inspect(|_| read.set(read.get() + 1)));
            read.get()
        };
        assert_eq!(reads(6_000, &of(0..5_000, 500)), 5_000);
        assert_eq!(reads(6_010, &of(0..5_000, 501)), 5_000);
        let others = of(5_000..MAX_SEEN_WORKERS + 1, 0);
        assert_eq!(reads(6_020, &others), 2 * others.len(), "once more, to forget those that are absent");
        assert_eq!(totals.last_counters.len(), others.len());
        assert_eq!(completed(&totals, "mail"), Some(5_000));
        assert_eq!(totals.totals.iter().count(), 3, "the sums of two kinds, and of others");
    }

    #[test]
    fn worker_that_was_only_unseen_does_not_count_again() {
        let mut totals = Counting::default();
        totals.add(at(6_000), [].iter());
        totals.add(at(6_010), [worker("a", 10, 500)].iter());
        assert_eq!(completed(&totals, "mail"), Some(0));
        totals.add(at(6_020), [].iter());
        totals.add(at(6_030), [worker("a", 10, 504)].iter());
        assert_eq!(completed(&totals, "mail"), Some(4), "a record that is missed once loses nothing");
    }
}
