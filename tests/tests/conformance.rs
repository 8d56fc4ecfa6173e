//! Every promise of the port, tried on every storage: `cargo test --test conformance -- --list` names them.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};

use jobqueue::storage::{Storage, traced};
use jobqueue::testing::conformance::{Promise, Report, Subject, promises, run_all};
use jobqueue::testing::faults::Faulty;
use jobqueue::{ManualClock, memory};
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Builder;

type Opening = Pin<Box<dyn Future<Output = Subject>>>;

fn main() {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    // One line for each storage: `virtual_time` where it takes a clock, `real_time` where it does not.
    trials.extend(virtual_time("memory", || Box::pin(async { in_memory() })));
    trials.extend(virtual_time("traced", || Box::pin(async { wrapped(|inner| traced(inner, "memory")) })));
    trials
        .extend(virtual_time("faulty", || Box::pin(async { wrapped(|inner| Faulty::new(inner).storage()) })));
    trials.extend(real_time("memory_in_tokio_time", in_tokio_time));
    libtest_mimic::run(&arguments, trials).exit();
}

fn in_memory() -> Subject {
    wrapped(Storage::clone)
}

/// A wrapper promises what the storage in it does.
fn wrapped(wrap: fn(&Storage) -> Storage) -> Subject {
    let clock = Arc::new(ManualClock::new());
    Subject::virtual_time(wrap(&memory::open_with_clock(clock.clone())), clock)
}

/// All promises at once on one storage that goes by tokio's clock, which is paused: the sleeps take no time.
fn in_tokio_time() -> Report {
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let storage = memory::open();
        run_all(async || Subject::real_time(storage.clone()), 1000).await
    })
}

/// A test for each promise, on a storage of its own that goes by a clock of its own.
fn virtual_time(storage: &'static str, open: fn() -> Opening) -> impl Iterator<Item = Trial> {
    promises().iter().map(move |promise| {
        trial(storage, promise, move || {
            let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            runtime.block_on(async { promise.run(&open().await).await }).map_err(Failed::from)
        })
    })
}

/// A test for each promise, of which the first to run tries all promises at once, so that their waits overlap.
fn real_time(storage: &'static str, run: fn() -> Report) -> impl Iterator<Item = Trial> {
    type Broken = HashMap<&'static str, String>;
    let broken: Arc<LazyLock<Broken, Box<dyn FnOnce() -> Broken + Send>>> =
        Arc::new(LazyLock::new(Box::new(move || {
            run().broken().iter().map(|(name, broken)| (*name, broken.to_string())).collect()
        })));
    promises().iter().map(move |promise| {
        let broken = Arc::clone(&broken);
        trial(storage, promise, move || match broken.get(promise.name()) {
            Some(problem) => Err(Failed::from(problem)),
            None => Ok(()),
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
