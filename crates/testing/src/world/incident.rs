//! Incidents: failures of processes, clocks and accounts.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::storage::Operation;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::disturbance::Disturbance;
use super::ledger::Fact;
use super::shared::Shared;
use super::worker::Slot;

/// An incident. Workers and accounts are numbered from 0, and larger numbers wrap around.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Incident {
    /// A worker process is killed, and another process starts later.
    Kill {
        /// The worker.
        worker: usize,
        /// The time until the next process starts.
        down: Duration,
    },
    /// A worker process dies during one of its next storage calls.
    KillAtCall {
        /// The worker.
        worker: usize,
        /// The number of calls before it, counted from now.
        call: u64,
        /// True if the call is performed.
        applied: bool,
        /// The time from now until the next process starts.
        down: Duration,
    },
    /// A worker process is frozen, and continues later.
    Freeze {
        /// The worker.
        worker: usize,
        /// The duration of the freeze.
        time: Duration,
    },
    /// A worker process is frozen right after its next call of an operation has failed, or during that call
    /// if it is a get, and continues later.
    FreezeAtCall {
        /// The worker.
        worker: usize,
        /// The operation.
        operation: Operation,
        /// True if the call is performed.
        applied: bool,
        /// The duration of the freeze.
        time: Duration,
    },
    /// The wall clock of a worker process is changed.
    Skew {
        /// The worker.
        worker: usize,
        /// The milliseconds by which the clock is ahead; negative if it is behind.
        millis: i64,
    },
    /// A worker shuts down, and another process starts.
    Restart {
        /// The worker.
        worker: usize,
    },
    /// The queues of an account do not answer.
    QueuesOut {
        /// The account.
        account: usize,
        /// The duration of the outage.
        time: Duration,
    },
    /// The blobs of an account do not answer.
    BlobsOut {
        /// The account.
        account: usize,
        /// The duration of the outage.
        time: Duration,
    },
}

/// The operations at which a worker is frozen. Deletions are drawn twice as often.
const FREEZE_OPERATIONS: [Operation; 5] =
    [Operation::Delete, Operation::Delete, Operation::Get, Operation::Update, Operation::Put];

impl Incident {
    /// Draws an incident from a seed.
    pub fn draw(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let worker = rng.random_range(0..8);
        let seconds =
            |rng: &mut StdRng, most: u64| Duration::from_millis(rng.random_range(100..most * 1_000));
        match rng.random_range(0..14) {
            0 | 1 => Self::Kill { worker, down: seconds(&mut rng, 20) },
            2..=5 => Self::KillAtCall {
                worker,
                call: rng.random_range(0..25),
                applied: rng.random(),
                down: seconds(&mut rng, 20),
            },
            6 | 7 => Self::Freeze { worker, time: seconds(&mut rng, 90) },
            8 => Self::Skew { worker, millis: rng.random_range(-120_000..=120_000) },
            9 => Self::Restart { worker },
            10 => Self::QueuesOut { account: rng.random_range(0..4), time: seconds(&mut rng, 60) },
            11 => Self::BlobsOut { account: rng.random_range(0..4), time: seconds(&mut rng, 90) },
            _ => Self::FreezeAtCall {
                worker,
                operation: *FREEZE_OPERATIONS.choose(&mut rng).unwrap_or(&Operation::Delete),
                applied: rng.random(),
                time: seconds(&mut rng, 90),
            },
        }
    }

    /// Draws the incidents of a time span, `per_minute` on average.
    pub fn draw_all(seed: u64, span: Duration, per_minute: f64) -> Vec<(Duration, Self)> {
        let mut rng = StdRng::seed_from_u64(seed);
        let count = (span.as_secs_f64() / 60.0 * per_minute).round() as u64;
        let mut drawn: Vec<_> = (0..count)
            .map(|_| {
                let millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX).max(1);
                let at = Duration::from_millis(rng.random_range(0..millis));
                (at, Self::draw(rng.random()))
            })
            .collect();
        drawn.sort_by_key(|(at, _)| *at);
        drawn
    }

    pub(super) fn inject(self, shared: &Arc<Shared>, slots: &[Arc<Slot>]) {
        let slot = |worker: usize| slots.get(worker.checked_rem(slots.len()).unwrap_or_default());
        let node = |worker: usize| slot(worker).and_then(|slot| slot.node());
        let outages = |account: usize| shared.outages.get(account % shared.outages.len());
        let note = |node: &Arc<str>, disturbance| shared.ledger.note(node, Fact::Incident(disturbance));
        match self {
            Self::Kill { worker, down } => {
                let Some(slot) = slot(worker) else { return };
                if let Some(node) = slot.node() {
                    node.kill();
                }
                slot.start_after(down);
            }
            Self::KillAtCall { worker, call, applied, down } => {
                let Some(slot) = slot(worker) else { return };
                if let Some(node) = slot.node() {
                    node.kill_at_call(call, applied);
                    restart_after_death(slot, down);
                }
            }
            Self::Freeze { worker, time } => {
                let Some(node) = node(worker) else { return };
                node.freeze(time);
            }
            Self::FreezeAtCall { worker, operation, applied, time } => {
                let Some(node) = node(worker) else { return };
                node.freeze_at(operation, time, applied);
            }
            Self::Skew { worker, millis } => {
                if let Some(node) = node(worker) {
                    node.skew(millis);
                    note(node.name(), Disturbance::Clock { ahead: millis });
                }
            }
            Self::Restart { worker } => {
                if let Some(slot) = slot(worker) {
                    slot.restart();
                }
            }
            Self::QueuesOut { account, time } => {
                note(&"storage".into(), Disturbance::QueuesOut { account, time });
                let Some(outages) = outages(account) else { return };
                outages.queues_out(time);
            }
            Self::BlobsOut { account, time } => {
                note(&"storage".into(), Disturbance::BlobsOut { account, time });
                let Some(outages) = outages(account) else { return };
                outages.blobs_out(time);
            }
        }
    }
}

/// Starts the next process of a slot `down` after its current process has died.
fn restart_after_death(slot: &Arc<Slot>, down: Duration) {
    let slot = Arc::clone(slot);
    let Some(node) = slot.node() else { return };
    drop(tokio::spawn(async move {
        while !node.process().is_killed() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        slot.start_after(down);
    }));
}

#[cfg(test)]
mod tests {
    use super::super::{Profile, World};
    use super::*;

    #[test]
    fn break_that_never_happened_is_in_the_history() {
        let scenario = async |world: World| {
            let node = world.node("sender");
            node.kill_at(Operation::Put, true);
            node.kill_at(Operation::Update, true);
            Ok(())
        };
        let run = World::builder().profile(Profile::quiet()).scenario(scenario).run(1);
        let unreached = |operation: &str| {
            let is = |fact: &Fact| matches!(fact, Fact::Incident(Disturbance::BreakNotReached(text)) if text.contains("sender was not reached") && text.contains(operation));
            run.history.iter().filter(|entry| is(&entry.fact)).count()
        };
        assert_eq!(unreached("Put"), 1, "{:?}", run.history);
        assert_eq!(unreached("Update"), 1, "{:?}", run.history);
    }
}
