//! Every promise of the port, tried on every storage: `cargo test --test conformance -- --list` names them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use jobqueue::testing::conformance::{Promise, Subject, promises};
use jobqueue::{ManualClock, memory};
use libtest_mimic::{Arguments, Failed, Trial};

type Opening = Pin<Box<dyn Future<Output = Subject>>>;

fn main() {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    trials.extend(virtual_time("memory", || Box::pin(async { in_memory() })));
    // One line for each further storage: in virtual time as above, in real time as in `azurite`.
    libtest_mimic::run(&arguments, trials).exit();
}

fn in_memory() -> Subject {
    let clock = Arc::new(ManualClock::new());
    Subject::virtual_time(memory::open_with_clock(clock.clone()), clock)
}

/// A test for each promise, on a storage of its own that goes by a clock of its own.
fn virtual_time(storage: &'static str, open: fn() -> Opening) -> impl Iterator<Item = Trial> {
    promises().iter().map(move |promise| {
        trial(storage, promise, move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            runtime.block_on(async { promise.run(&open().await).await }).map_err(Failed::from)
        })
    })
}

fn trial(
    storage: &str,
    promise: &Promise,
    run: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    Trial::test(format!("{storage}::{}", promise.name()), run)
}
