//! Decides which calls fail, by the faults of the profile, by outages, and by planned breaks of processes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::storage::{Operation, Storage, StoreErrorKind};
use jobqueue_storage::sync::lock;
use tokio::time::Instant;

use super::disturbance::Disturbance;
use super::ledger::Fact;
use super::shared::{Backing, Shared};
use crate::faults::{AzureLike, Call, Fault, Faulty, lost};
use crate::simulation::Process;

/// The rates of faults and incidents in a world.
#[derive(Debug, Clone)]
pub struct Profile {
    /// The share of storage calls that fail, from 0 to 1.
    pub faults: f64,
    /// The number of incidents per minute: crashes, frozen processes, wrong clocks, outages, restarts.
    pub incidents_per_minute: f64,
}

impl Profile {
    /// Returns a profile with latency only. Without faults, a doubled run has no cause.
    pub fn quiet() -> Self {
        Self { faults: 0.0, incidents_per_minute: 0.0 }
    }

    /// Returns a profile in which one call in thirty fails, with two incidents per minute.
    pub fn azure_like() -> Self {
        Self { faults: 0.03, incidents_per_minute: 2.0 }
    }
}

/// An outage of the queues or of the blobs of an account.
#[derive(Debug, Clone, Copy)]
struct Outage {
    until: Instant,
    /// True if connections are refused, so that nothing is applied; false if requests are lost.
    refuses: bool,
}

impl Outage {
    /// Every other outage refuses connections: the parity of its length in milliseconds decides.
    fn of(time: Duration) -> Option<Self> {
        Some(Self { until: Instant::now() + time, refuses: time.as_millis() % 2 == 1 })
    }
}

/// The current outages of a storage account.
#[derive(Debug, Default)]
pub(super) struct AccountOutages {
    queues_out: Mutex<Option<Outage>>,
    blobs_out: Mutex<Option<Outage>>,
}

impl AccountOutages {
    pub(super) fn queues_out(&self, time: Duration) {
        *lock(&self.queues_out) = Outage::of(time);
    }

    pub(super) fn blobs_out(&self, time: Duration) {
        *lock(&self.blobs_out) = Outage::of(time);
    }

    pub(super) fn clear(&self) {
        *lock(&self.queues_out) = None;
        *lock(&self.blobs_out) = None;
    }

    fn outage(&self, operation: Operation) -> Option<Outage> {
        let outage = if operation.is_of_blobs() { &self.blobs_out } else { &self.queues_out };
        lock(outage).filter(|outage| Instant::now() < outage.until)
    }
}

/// The call at which a process breaks.
#[derive(Debug, Clone, Copy)]
pub(super) struct BreakPoint {
    /// The operation of the call, or `None` if calls of every operation count.
    pub(super) operation: Option<Operation>,
    /// The number of calls before it, counted from now.
    pub(super) calls: u64,
    /// True if the call is performed.
    pub(super) applied: bool,
    pub(super) effect: BreakEffect,
}

/// The break that is planned for a process.
pub(super) type PlannedBreak = Arc<Mutex<Option<BreakPoint>>>;

/// The time from the effect of a call until its process is frozen.
const FREEZE_DELAY: Duration = Duration::from_millis(1);

/// The effect of a break on the process.
#[derive(Debug, Clone, Copy)]
pub(super) enum BreakEffect {
    Dies,
    /// The call fails, and the process is frozen for this time before it retries. The answer to a get arrives
    /// after the freeze.
    Freezes(Duration),
    /// The answer is lost after the caller has waited this long.
    Waits(Duration),
}

/// The storage of one account as one process sees it.
#[derive(Debug)]
pub(super) struct AccountView {
    pub(super) shared: Arc<Shared>,
    pub(super) node: Arc<str>,
    pub(super) process: Process,
    pub(super) account: usize,
    pub(super) breaks: PlannedBreak,
}

impl AccountView {
    /// Returns a storage that fails as this view decides.
    pub(super) fn of(self, storage: &Storage) -> Storage {
        let seed = self.shared.draw();
        let rate = self.shared.profile.faults;
        let (quiet, failing) = (AzureLike::seeded(seed), AzureLike::seeded(seed).faults(rate));
        let (quiet, failing) = (Mutex::new(quiet.start()), Mutex::new(failing.start()));
        let last_outage = Mutex::new(None);
        let faulty = match self.shared.backing {
            Backing::AzureLike => Faulty::azure_like(storage, AzureLike::seeded(seed)),
            Backing::Still(_) => Faulty::native(storage, false),
            Backing::Connected(_) => Faulty::native(storage, true),
        };
        faulty.behave(move |call| {
            if self.shared.is_overrun() {
                return vec![Fault::Hang];
            }
            let behaviour = if self.shared.has_faults() { &failing } else { &quiet };
            let mut faults = lock(behaviour).faults(call);
            if self.shared.has_faults() {
                self.outage(call, &last_outage, &mut faults);
                self.break_call(call, &mut faults);
            }
            self.note(call, &faults);
            faults
        });
        faulty.storage()
    }

    /// Fails a call during an outage. `last_outage` is the end of the last outage that this process has met:
    /// in an outage that refuses connections, the connection breaks during the first change, and later calls
    /// are refused.
    fn outage(&self, call: &Call, last_outage: &Mutex<Option<Instant>>, faults: &mut Vec<Fault>) {
        let Some(outage) = self.shared.outages[self.account].outage(call.operation) else { return };
        faults.truncate(1);
        faults.push(match (call.operation.is_change(), outage.refuses) {
            (true, true) if lock(last_outage).replace(outage.until) != Some(outage.until) => {
                Fault::DropAnswer(StoreErrorKind::Unavailable)
            }
            (true, false) => Fault::LoseRequest(StoreErrorKind::Unavailable),
            _ => Fault::Refuse(StoreErrorKind::Unavailable),
        });
    }

    /// Breaks the call at which the process is to die, to freeze or to lose the answer.
    fn break_call(&self, call: &Call, faults: &mut Vec<Fault>) {
        let mut breaks = lock(&self.breaks);
        let Some(point) = breaks.as_mut() else { return };
        if point.operation.is_some_and(|operation| operation != call.operation) {
            return;
        }
        if point.calls > 0 {
            point.calls -= 1;
            return;
        }
        let BreakPoint { applied, effect, .. } = *point;
        *breaks = None;
        let delay = match faults.first() {
            Some(Fault::DelayBefore(delay)) => *delay,
            _ => Duration::ZERO,
        };
        let lost = lost(call.operation.is_change(), applied);
        *faults = match effect {
            BreakEffect::Dies if applied => vec![Fault::DelayBefore(delay), Fault::HangAfter],
            BreakEffect::Dies => vec![Fault::DelayBefore(delay), Fault::Hang],
            BreakEffect::Freezes(_) if call.operation == Operation::Get => {
                vec![Fault::DelayBefore(delay), Fault::DelayAfter(FREEZE_DELAY * 2)]
            }
            BreakEffect::Freezes(_) => vec![Fault::DelayBefore(delay), lost],
            BreakEffect::Waits(wait) if applied => {
                vec![Fault::DelayBefore(delay), Fault::DelayAfter(wait), lost]
            }
            BreakEffect::Waits(wait) => vec![Fault::DelayBefore(wait), lost],
        };
        self.end_process(delay, effect);
    }

    /// Kills or freezes the process once the call has been made.
    fn end_process(&self, delay: Duration, effect: BreakEffect) {
        let (process, shared, node) =
            (self.process.clone(), Arc::clone(&self.shared), Arc::clone(&self.node));
        let note = move |disturbance| shared.ledger.note(&node, Fact::Incident(disturbance));
        // These tasks must not belong to the process.
        match effect {
            BreakEffect::Waits(_) => {}
            BreakEffect::Dies => drop(tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                process.kill();
                note(Disturbance::DiedInCall);
            })),
            BreakEffect::Freezes(time) => drop(tokio::spawn(async move {
                tokio::time::sleep(delay + FREEZE_DELAY).await;
                process.stop();
                note(Disturbance::Frozen { time });
                tokio::time::sleep(time).await;
                process.resume();
                note(Disturbance::Continues);
            })),
        }
    }

    fn note(&self, call: &Call, faults: &[Fault]) {
        self.shared.count_call(&self.node, call);
        let is_delay = |fault: &&Fault| matches!(fault, Fault::DelayBefore(_) | Fault::DelayAfter(_));
        let failures = faults.iter().filter(|fault| !is_delay(fault));
        for fault in failures {
            let (operation, subject) = (call.operation, call.subject.clone());
            self.shared.ledger.note(&self.node, Fact::Fault { operation, subject, fault: *fault });
        }
    }
}
