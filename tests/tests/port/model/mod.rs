//! Two storages under the same random operations and one clock must give the same answers.
//!
//! The storage in memory is the reference. Ids and receipts are random, so they are matched by position: the
//! answer of one storage at some place stands for the answer of the other there. Stale and exchanged receipts
//! are used on purpose. A failure prints the shortest sequence of operations that shows it; `PROPTEST_CASES`
//! makes the search longer.

mod azurite;
mod lenient;
mod operation;
mod pair;
mod servicebus;
mod sessions;

use jobqueue::{Runtime, Storage, memory, sqlite};
use operation::Operations;
use pair::Pair;
use proptest::test_runner::{Config, TestRunner};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest};

/// Drives the reference and the storage of this number.
struct Against<const STORAGE: u8>;

const MEMORY: u8 = 0;
const SQLITE: u8 = 1;
const LENIENT: u8 = 2;

impl<const STORAGE: u8> StateMachineTest for Against<STORAGE> {
    type SystemUnderTest = Pair;
    type Reference = Operations;

    fn init_test(_: &()) -> Pair {
        Pair::open(async |clock| match STORAGE {
            SQLITE => {
                let folder = tempfile::tempdir().unwrap();
                let options = sqlite::Options::new(folder.path().join("jobs.db"))
                    .runtime(Runtime::new().with_clock(clock));
                // The model is about answers, not about power cuts.
                let options = options.synchronous(sqlite::Synchronous::Normal);
                (Storage::open(options).await.unwrap(), Some(folder))
            }
            LENIENT => (lenient::wrap(&memory::open_on(Runtime::new().with_clock(clock))), None),
            _ => (memory::open_on(Runtime::new().with_clock(clock)), None),
        })
    }

    fn apply(mut pair: Pair, _: &(), operation: operation::Op) -> Pair {
        pair.apply(&operation);
        pair
    }
}

fn config(cases: u32) -> Config {
    let configured = Config::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { configured.cases } else { cases };
    Config { cases, failure_persistence: None, ..configured }
}

/// Runs `cases` sequences of up to 80 operations. Returns the output of the first one that differs.
fn compare<const STORAGE: u8>(config: Config) -> Result<(), String> {
    let mut runner = TestRunner::new(config.clone());
    let sequences = Operations::sequential_strategy(20..80);
    let outcome = runner.run(&sequences, |(state, operations, seen)| {
        Against::<STORAGE>::test_sequential(config.clone(), state, operations, seen);
        Ok(())
    });
    outcome.map_err(|error| error.to_string())
}

#[test]
fn sqlite_answers_as_memory_does() {
    compare::<SQLITE>(config(64)).unwrap();
}

#[test]
fn memory_answers_as_memory_does() {
    compare::<MEMORY>(config(128)).unwrap();
}

/// The model must notice a storage that accepts expired receipts (I5); otherwise it would prove nothing.
#[test]
fn a_storage_that_breaks_a_rule_is_found_out() {
    let found = compare::<LENIENT>(config(256)).unwrap_err();
    assert!(found.contains("LeaseExpired"), "found something else: {found}");
}
