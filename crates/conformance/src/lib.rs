//! The conformance suite for storage adapters: one function for each promise of the port.
//!
//! A promise is a sentence and an async function over a [`Subject`]: the storage under test, a way to let
//! time pass, and the documented [`Deviation`]s of the storage. Where a storage deviates, the promise asserts
//! the *deviating* behaviour. So if a storage no longer deviates, the suite fails until the exception is
//! removed.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! use std::sync::Arc;
//! use jobqueue::clock::ManualClock;
//! use jobqueue::{Runtime, memory};
//! use jobqueue_conformance::{Subject, exercise};
//!
//! let clock = Arc::new(ManualClock::new());
//! let subject = Subject::virtual_time(memory::open_on(Runtime::new().with_clock(clock.clone())), clock);
//! exercise(&subject).await.assert_kept();
//! # }
//! ```

#![forbid(unsafe_code)]

#[macro_use]
mod check;
#[macro_use]
mod promise;

mod announcements;
mod blobs;
mod deviation;
mod fixture;
mod journal;
mod leases;
mod prelude;
mod queues;
mod runner;
mod subject;
mod subscribe;

use std::sync::LazyLock;

pub use check::Broken;
pub use deviation::Deviation;
pub use promise::Promise;
pub use runner::{Report, exercise, run_all};
pub use subject::Subject;

/// Returns all promises, in the order of the port's operations.
pub fn promises() -> &'static [Promise] {
    static ALL: LazyLock<Vec<Promise>> = LazyLock::new(|| {
        [
            queues::all(),
            subscribe::PROMISES.to_vec(),
            announcements::PROMISES.to_vec(),
            blobs::all(),
            leases::all(),
            journal::PROMISES.to_vec(),
        ]
        .concat()
    });
    &ALL
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_promise_has_a_unique_name_and_a_sentence() {
        let names: HashSet<_> = promises().iter().map(Promise::name).collect();
        assert_eq!(names.len(), promises().len());
        for promise in promises() {
            assert!(promise.summary().ends_with('.'), "{}: {}", promise.name(), promise.summary());
        }
    }
}
