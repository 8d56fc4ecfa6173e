//! The faults of a process, drawn from its seed: it dies at a point, answers are lost, sends are refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue_testing::faults::{Fault, Faulty};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::ledger::Ledger;

/// The operations at which a process may die: before one, or after it was done and before it was answered.
const POINTS: [Operation; 8] = [
    Operation::Put,
    Operation::PutAll,
    Operation::Get,
    Operation::Update,
    Operation::Delete,
    Operation::DeleteAll,
    Operation::PutBlob,
    Operation::DeleteBlob,
];

/// The number of planned faults that left a call of this process uncertain.
#[derive(Default, Clone)]
pub struct Doubts(Arc<AtomicU64>);

impl Doubts {
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// Plans the faults of a process.
pub fn plan(faulty: &Faulty, seed: u64, sends: bool, ledger: &Arc<Ledger>) -> Doubts {
    let mut random = StdRng::seed_from_u64(seed);
    if random.random_bool(0.5) {
        let operation = POINTS[random.random_range(0..POINTS.len())];
        die_at(faulty, operation, random.random_range(1..60), random.random_bool(0.5));
    }
    let doubts = Doubts::default();
    if random.random_bool(0.5) {
        for operation in POINTS {
            let random = StdRng::seed_from_u64(random.random());
            lose_answers(faulty, operation, random, (sends, doubts.clone(), Arc::clone(ledger)));
        }
    }
    doubts
}

fn lose_answers(
    faulty: &Faulty,
    operation: Operation,
    mut random: StdRng,
    (sends, doubts, ledger): (bool, Doubts, Arc<Ledger>),
) {
    let puts = matches!(operation, Operation::Put | Operation::PutAll);
    faulty.on(operation, move |call| {
        let fault = match random.random_range(0..100) {
            0 => Fault::DropAnswer(StoreErrorKind::Timeout),
            1 => Fault::LoseRequest(StoreErrorKind::Timeout),
            2..7 if sends && puts => return Some(Fault::Refuse(StoreErrorKind::Unauthorized)),
            _ => return None,
        };
        doubts.0.fetch_add(1, Ordering::SeqCst);
        ledger.note("doubtful", 0, &format!("{} of {}", call.operation, call.subject));
        Some(fault)
    });
}

/// Kills this process at its `nth` call of an operation, as SIGKILL does: nothing is unwound, nothing is
/// flushed.
fn die_at(faulty: &Faulty, operation: Operation, nth: u64, before: bool) {
    faulty.on(operation, move |call| {
        if call.nth != nth {
            return None;
        }
        if before {
            kill();
        }
        // Done and never answered; killed when it is certainly done.
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            kill();
        });
        Some(Fault::HangAfter)
    });
}

fn kill() -> ! {
    let _ = std::process::Command::new("kill").args(["-KILL", &std::process::id().to_string()]).status();
    std::process::abort()
}
