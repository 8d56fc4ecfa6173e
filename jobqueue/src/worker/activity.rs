//! Detects whether a worker is idle.

use std::pin::pin;
use std::sync::{Mutex, MutexGuard};

use tokio::sync::Notify;

use crate::sync::lock;

/// Counts running jobs and received messages, to distinguish an idle worker from one between two jobs.
#[derive(Debug)]
pub(super) struct Activity {
    state: Mutex<ActivityState>,
    /// Not a `watch` channel: it wakes its waiters in a random order, and simulations must be repeatable.
    changed: Notify,
}

#[derive(Debug)]
struct ActivityState {
    in_flight: usize,
    /// Grows whenever a message is received or settled.
    generation: u64,
    /// The generation in which each poller last found its queue empty.
    empty_at: Vec<Option<u64>>,
    /// The latest generation in which no job was running.
    quiet: u64,
}

impl ActivityState {
    /// A worker with only schedules has no queues, and is always idle.
    fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.empty_at.iter().all(|at| *at == Some(self.generation))
    }
}

impl Activity {
    pub(super) fn new(pollers: usize) -> Self {
        let state = ActivityState { in_flight: 0, generation: 0, empty_at: vec![None; pollers], quiet: 0 };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }

    fn change(&self, change: impl FnOnce(&mut ActivityState)) {
        let mut state = self.lock();
        let before = (state.quiet, state.is_idle());
        change(&mut state);
        if state.in_flight == 0 {
            state.quiet = state.generation;
        }
        let changed = before != (state.quiet, state.is_idle());
        drop(state);
        if changed {
            self.changed.notify_waiters();
        }
    }

    async fn until(&self, holds: impl Fn(&ActivityState) -> bool) {
        loop {
            let mut changed = pin!(self.changed.notified());
            // Enabled before the state is read, so that no change is missed.
            changed.as_mut().enable();
            if holds(&self.lock()) {
                return;
            }
            changed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, ActivityState> {
        lock(&self.state)
    }

    /// Returns the generation to report with [`found_empty`](Self::found_empty). Read it before the request
    /// to the queue.
    pub(super) fn generation(&self) -> u64 {
        self.lock().generation
    }

    pub(super) fn started(&self, jobs: usize) {
        self.change(|state| {
            state.in_flight += jobs;
            state.generation += 1;
        });
    }

    pub(super) fn finished(&self) {
        self.change(|state| {
            state.in_flight -= 1;
            state.generation += 1;
        });
    }

    pub(super) fn found_empty(&self, poller: usize, generation: u64) {
        self.change(|state| state.empty_at[poller] = Some(generation));
    }

    /// Resolves when no job is running in a generation after `generation`: the last job may have sent more
    /// messages, so the caller polls again.
    pub(super) async fn quiet_after(&self, generation: u64) {
        self.until(|state| state.quiet > generation).await;
    }

    /// Resolves when no job is running and every queue was found empty since the last job ended.
    pub(super) async fn idle(&self) {
        self.until(ActivityState::is_idle).await;
    }
}
