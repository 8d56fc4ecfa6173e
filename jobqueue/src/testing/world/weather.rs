//! Decides which calls fail: by the faults of the profile, by outages, and by the call at which a process dies.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::ledger::Fact;
use super::shared::Shared;
use crate::storage::{Operation, Storage, StoreErrorKind};
use crate::sync::lock;
use crate::task::process::Process;
use crate::testing::faults::{AzureLike, Call, Fault, Faulty};

/// The rates of faults and incidents in a world.
#[derive(Debug, Clone)]
pub struct Profile {
    /// The share of storage calls that fail.
    pub faults: f64,
    /// The number of incidents per minute: crashes, frozen processes, wrong clocks, outages, restarts.
    pub incidents_per_minute: f64,
}

impl Profile {
    /// Returns a profile with latency only: a doubled run in it has no cause.
    pub fn quiet() -> Self {
        Self { faults: 0.0, incidents_per_minute: 0.0 }
    }

    /// Returns a profile in which one call in thirty fails, with two incidents per minute.
    pub fn azure_like() -> Self {
        Self { faults: 0.03, incidents_per_minute: 2.0 }
    }
}

/// The present outages of a storage account.
#[derive(Debug, Default)]
pub(super) struct Weather {
    queues_out: Mutex<Option<Instant>>,
    blobs_out: Mutex<Option<Instant>>,
}

impl Weather {
    pub(super) fn queues_out(&self, time: Duration) {
        *lock(&self.queues_out) = Some(Instant::now() + time);
    }

    pub(super) fn blobs_out(&self, time: Duration) {
        *lock(&self.blobs_out) = Some(Instant::now() + time);
    }

    pub(super) fn clear(&self) {
        *lock(&self.queues_out) = None;
        *lock(&self.blobs_out) = None;
    }

    fn is_out(&self, operation: Operation) -> bool {
        let until = if operation.is_of_blobs() { &self.blobs_out } else { &self.queues_out };
        lock(until).is_some_and(|until| Instant::now() < until)
    }
}

/// The call at which a process dies, counted from now.
#[derive(Debug, Clone, Copy)]
pub(super) struct CrashPoint {
    pub(super) calls: u64,
    /// True if the call is performed.
    pub(super) applied: bool,
}

/// One process's view of one account.
pub(super) struct View {
    pub(super) shared: Arc<Shared>,
    pub(super) node: Arc<str>,
    pub(super) process: Process,
    pub(super) account: usize,
    pub(super) crash: Arc<Mutex<Option<CrashPoint>>>,
}

impl View {
    /// Returns a storage that fails as this view determines.
    pub(super) fn of(self, storage: &Storage) -> Storage {
        let seed = self.shared.draw();
        let rate = self.shared.profile.faults;
        let (quiet, failing) = (AzureLike::seeded(seed), AzureLike::seeded(seed).faults(rate));
        let (quiet, failing) = (Mutex::new(quiet.start()), Mutex::new(failing.start()));
        let faulty = match self.shared.is_azure_like {
            true => Faulty::azure_like(storage, AzureLike::seeded(seed)),
            false => Faulty::polled(storage),
        };
        faulty.behave(move |call| {
            if self.shared.is_overrun() {
                return vec![Fault::Hang];
            }
            let own = if self.shared.has_faults() { &failing } else { &quiet };
            let mut faults = lock(own).faults(call);
            if self.shared.has_faults() {
                self.outage(call, &mut faults);
                self.crash(&mut faults);
            }
            self.note(call, &faults);
            faults
        });
        faulty.storage()
    }

    fn outage(&self, call: &Call, faults: &mut Vec<Fault>) {
        if self.shared.weather[self.account].is_out(call.operation) {
            faults.truncate(1);
            faults.push(match call.operation.is_change() {
                true => Fault::LoseRequest(StoreErrorKind::Unavailable),
                false => Fault::Refuse(StoreErrorKind::Unavailable),
            });
        }
    }

    fn crash(&self, faults: &mut Vec<Fault>) {
        let mut crash = lock(&self.crash);
        let Some(point) = crash.as_mut() else { return };
        if point.calls > 0 {
            point.calls -= 1;
            return;
        }
        let applied = point.applied;
        *crash = None;
        let delay = match faults.first() {
            Some(Fault::DelayBefore(delay)) => *delay,
            _ => Duration::ZERO,
        };
        *faults = vec![Fault::DelayBefore(delay), if applied { Fault::HangAfter } else { Fault::Hang }];
        let (process, shared, node) =
            (self.process.clone(), Arc::clone(&self.shared), Arc::clone(&self.node));
        // The task must not belong to the process.
        drop(tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            process.kill();
            shared.ledger.note(&node, Fact::Incident("died in a storage call".to_owned()));
        }));
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

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("node", &self.node).field("account", &self.account).finish()
    }
}
