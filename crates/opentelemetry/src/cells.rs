//! Counters of the jobs of each kind in each queue.
//!
//! An instrument hashes all attributes of every record, several times per job. So this module accumulates the
//! counts and passes them to the instruments when these are collected.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use jobqueue::__internals::{is_hidden, kept_text, visible};
use jobqueue::QueueName;
use opentelemetry::metrics::{Counter, UpDownCounter};
use opentelemetry::{KeyValue, StringValue};

use crate::attributes::{Attributes, StorageAttributes, outcome_of};
use crate::conventions as names;

/// The maximum number of kinds in all queues of a storage together. A program has few kinds, and their
/// number does not grow while it runs.
const MAX_KINDS: usize = 200;

/// The names of outcomes. The last name stands for the outcomes of later versions of the library.
const OUTCOMES: [&str; 9] = [
    "completed",
    "retried",
    "dead_lettered",
    "released",
    "lease_lost",
    "completed_uncertain",
    "duplicate",
    "expired",
    names::OTHER,
];

/// The counters of one kind in one queue.
pub(crate) struct Cell {
    queue: QueueName,
    kind: Arc<str>,
    /// The attributes for the storage, the queue and the kind.
    attributes: Attributes,
    /// The number of running handlers, and the number last passed to the instrument.
    in_flight: AtomicI64,
    flushed_in_flight: AtomicI64,
    is_flushed: AtomicBool,
    /// The ended deliveries by outcome that have not been passed to the instrument yet.
    attempts: [AtomicU64; OUTCOMES.len()],
}

impl Cell {
    fn new(storage: &StorageAttributes, queue: &QueueName, kind: &str) -> Self {
        let kind = Arc::<str>::from(kind);
        let attributes = storage.with_queue(queue, [kind_attribute(&kind)]);
        Self {
            queue: queue.clone(),
            kind,
            attributes,
            in_flight: AtomicI64::default(),
            flushed_in_flight: AtomicI64::default(),
            is_flushed: AtomicBool::default(),
            attempts: Default::default(),
        }
    }

    /// Returns the attributes for the storage, the queue and the kind.
    pub(crate) fn attributes(&self) -> &[KeyValue] {
        &self.attributes
    }

    /// Returns the attribute for the kind.
    pub(crate) fn kind(&self) -> KeyValue {
        kind_attribute(&self.kind)
    }

    /// Counts a delivery that has ended.
    pub(crate) fn count(&self, outcome: &str) {
        let place = OUTCOMES.iter().position(|name| *name == outcome).unwrap_or(OUTCOMES.len() - 1);
        self.attempts[place].fetch_add(1, Ordering::Relaxed);
    }

    /// Adds to the number of running handlers.
    pub(crate) fn add_in_flight(&self, jobs: i64) {
        self.in_flight.fetch_add(jobs, Ordering::Relaxed);
    }

    fn flush(&self, attempts: &Counter<u64>, in_flight: &UpDownCounter<i64>) {
        let now = self.in_flight.load(Ordering::Relaxed);
        let change = now - self.flushed_in_flight.swap(now, Ordering::Relaxed);
        if change != 0 || !self.is_flushed.swap(true, Ordering::Relaxed) {
            in_flight.add(change, &self.attributes);
        }
        for (count, outcome) in self.attempts.iter().zip(OUTCOMES) {
            let count = count.swap(0, Ordering::Relaxed);
            if count > 0 {
                let with_outcome = self.attributes.iter().cloned().chain([outcome_of(outcome)]);
                attempts.add(count, &with_outcome.collect::<Attributes>());
            }
        }
    }
}

fn kind_attribute(kind: &Arc<str>) -> KeyValue {
    KeyValue::new(names::KIND, StringValue::from(Arc::clone(kind)))
}

/// The counters of all observed storages.
#[derive(Default)]
pub(crate) struct StorageCells(Mutex<Vec<Arc<Cells>>>);

impl StorageCells {
    /// Returns the counters of a storage. Storages with one name share them, because their records have the
    /// same attributes.
    pub(crate) fn of(&self, storage: &StorageAttributes) -> Arc<Cells> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = all.iter().find(|cells| cells.storage.name() == storage.name()) {
            return Arc::clone(found);
        }
        let cells = Arc::new(Cells::new(storage.clone()));
        all.push(Arc::clone(&cells));
        cells
    }

    /// Returns the counters of each storage.
    pub(crate) fn all(&self) -> Vec<Arc<Cells>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The counters of all kinds of one storage that the workers of this process handle or have run, and the
/// states of its circuits.
pub(crate) struct Cells {
    storage: StorageAttributes,
    cells: RwLock<Vec<Arc<Cell>>>,
    circuits: Mutex<BTreeMap<QueueName, bool>>,
}

impl Cells {
    fn new(storage: StorageAttributes) -> Self {
        Self { storage, cells: RwLock::default(), circuits: Mutex::default() }
    }

    /// Returns the cell of a kind that this process runs, or the shared cell if there are too many kinds.
    pub(crate) fn own(&self, queue: &QueueName, kind: &str) -> Arc<Cell> {
        if let Some(cell) = self.find(queue, kind) {
            return cell;
        }
        let kind = written(kind);
        let mut cells = self.cells.write().unwrap_or_else(PoisonError::into_inner);
        let kind = if cells.len() < MAX_KINDS { &*kind } else { names::OTHER };
        if let Some(cell) = find(&cells, queue, kind) {
            return cell;
        }
        let cell = Arc::new(Cell::new(&self.storage, queue, kind));
        cells.push(Arc::clone(&cell));
        cell
    }

    /// Returns the cell of a message's kind. Unknown kinds share one cell, because messages of other programs
    /// may have any kind.
    pub(crate) fn of(&self, queue: &QueueName, kind: Option<&str>) -> Arc<Cell> {
        kind.and_then(|kind| self.find(queue, kind)).unwrap_or_else(|| self.own(queue, names::OTHER))
    }

    fn find(&self, queue: &QueueName, kind: &str) -> Option<Arc<Cell>> {
        find(&self.cells.read().unwrap_or_else(PoisonError::into_inner), queue, &written(kind))
    }

    /// Records that a queue has a circuit.
    pub(crate) fn has_circuit(&self, queue: &QueueName) {
        let mut circuits = self.circuits.lock().unwrap_or_else(PoisonError::into_inner);
        circuits.entry(queue.clone()).or_insert(false);
    }

    /// Records the state of a queue's circuit.
    pub(crate) fn circuit(&self, queue: &QueueName, is_open: bool) {
        self.circuits.lock().unwrap_or_else(PoisonError::into_inner).insert(queue.clone(), is_open);
    }

    /// Returns the attributes of each queue with a circuit, and whether the circuit is open.
    pub(crate) fn circuits(&self) -> Vec<(Attributes, bool)> {
        let circuits = self.circuits.lock().unwrap_or_else(PoisonError::into_inner);
        circuits.iter().map(|(queue, is_open)| (self.storage.with_queue(queue, None), *is_open)).collect()
    }

    /// Passes the counts to the instruments.
    pub(crate) fn flush(&self, attempts: &Counter<u64>, in_flight: &UpDownCounter<i64>) {
        let cells = self.cells.read().unwrap_or_else(PoisonError::into_inner).clone();
        cells.iter().for_each(|cell| cell.flush(attempts, in_flight));
    }
}

/// Returns a kind as attributes have it. A relay forwards kinds of senders, which may have any length and any
/// characters.
fn written(kind: &str) -> Cow<'_, str> {
    let kind = kept_text(kind);
    if kind.contains(is_hidden) { visible(kind, &[]).into() } else { kind.into() }
}

fn find(cells: &[Arc<Cell>], queue: &QueueName, kind: &str) -> Option<Arc<Cell>> {
    cells.iter().find(|cell| *cell.kind == *kind && cell.queue == *queue).map(Arc::clone)
}

#[cfg(test)]
mod tests {
    use jobqueue::Storage;

    use super::*;

    fn kind_of(cell: &Cell) -> &str {
        &cell.kind
    }

    #[test]
    fn unknown_kinds_share_one_value() {
        let cells = Cells::new(StorageAttributes::of(&Storage::memory()));
        let queue = QueueName::new("orders").unwrap();
        let other = QueueName::new("mails").unwrap();
        assert_eq!(kind_of(&cells.of(&queue, Some("order"))), names::OTHER);
        assert_eq!(kind_of(&cells.own(&queue, "order")), "order");
        assert_eq!(kind_of(&cells.of(&queue, Some("order"))), "order");
        assert_eq!(kind_of(&cells.of(&queue, Some("<script>"))), names::OTHER);
        assert_eq!(kind_of(&cells.of(&queue, None)), names::OTHER);
        assert_eq!(kind_of(&cells.of(&other, Some("order"))), names::OTHER);
        // review 34 b, C5
        let long = format!("a\n{}", "x".repeat(60_000));
        let relayed = cells.own(&queue, &long);
        assert!(kind_of(&relayed).starts_with("a\\nx"), "{}", kind_of(&relayed));
        assert!(kind_of(&relayed).len() <= 1_025);
        assert!(Arc::ptr_eq(&cells.of(&queue, Some(&long)), &relayed));
        for number in 0..2 * MAX_KINDS {
            cells.own(&queue, &number.to_string());
        }
        assert_eq!(kind_of(&cells.own(&queue, "new")), names::OTHER);
        assert!(cells.cells.read().unwrap().len() <= MAX_KINDS + 2);
    }
}
