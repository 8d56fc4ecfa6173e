//! Tells whether a worker has anything to do.

use std::pin::pin;
use std::sync::{Mutex, MutexGuard};

use tokio::sync::Notify;

use crate::sync::lock;

/// Counts what is going on, so that "nothing left to do" can be told from "between two jobs".
#[derive(Debug)]
pub(super) struct Activity {
    state: Mutex<State>,
    /// Not a `watch` channel, which wakes those who wait in a random order: a simulation must repeat.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    in_flight: usize,
    /// Grows whenever something is received or settled.
    generation: u64,
    /// The generation in which each poller last found its queue empty.
    empty_at: Vec<Option<u64>>,
    /// The newest generation in which no job was running.
    quiet: u64,
}

impl State {
    /// A worker that only sends on schedule has no queue that could become empty, and is idle.
    fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.empty_at.iter().all(|at| *at == Some(self.generation))
    }
}

impl Activity {
    pub(super) fn new(pollers: usize) -> Self {
        let state = State { in_flight: 0, generation: 0, empty_at: vec![None; pollers], quiet: 0 };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
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

    async fn until(&self, holds: impl Fn(&State) -> bool) {
        loop {
            let mut changed = pin!(self.changed.notified());
            // Before the state is read, so that no change between the two is missed.
            changed.as_mut().enable();
            if holds(&self.lock()) {
                return;
            }
            changed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The generation to report with [`found_empty`](Self::found_empty), read before the queue is looked at.
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

    /// Resolves when no job is running any more and something has happened since `generation`: time to look again whether
    /// the last job has left more to do.
    pub(super) async fn quiet_after(&self, generation: u64) {
        self.until(|state| state.quiet > generation).await;
    }

    /// Resolves when no job is running and every queue was found empty since the last one ended.
    pub(super) async fn idle(&self) {
        self.until(State::is_idle).await;
    }
}
