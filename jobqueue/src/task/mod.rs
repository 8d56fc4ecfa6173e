//! Starts tasks. Every task of the library is started here.
//!
//! In production a task is one of tokio's. A test may group the tasks of its thread into processes that it stops and
//! kills ([`process`]); a task belongs to the process of the task that started it.

#[cfg(feature = "testing")]
pub(crate) mod process;

use std::future::Future;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

#[cfg(feature = "testing")]
use process::in_current_process;

/// Starts a task on the current runtime.
pub(crate) fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(in_current_process(future))
}

/// Starts a task on another runtime.
pub(crate) fn spawn_on<T: Send + 'static>(
    runtime: &Handle,
    future: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    runtime.spawn(in_current_process(future))
}

/// Starts a task that a tracker waits for.
pub(crate) fn spawn_tracked(tracker: &TaskTracker, future: impl Future<Output = ()> + Send + 'static) {
    drop(tracker.spawn(in_current_process(future)));
}

#[cfg(not(feature = "testing"))]
fn in_current_process<F: Future>(future: F) -> F {
    future
}
