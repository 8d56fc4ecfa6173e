//! Whether a worker has anything to do.

use std::sync::Mutex;

use tokio::sync::watch;

use crate::sync::lock;

/// Counts what is going on, so that "nothing left to do" can be told from "between two jobs".
#[derive(Debug)]
pub(super) struct Activity {
    state: Mutex<State>,
    idle: watch::Sender<bool>,
    /// The newest generation in which no job was running.
    quiet: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    in_flight: usize,
    /// Grows whenever something is received or settled.
    generation: u64,
    /// The generation in which each poller last found its queue empty.
    empty_at: Vec<Option<u64>>,
}

impl Activity {
    pub(super) fn new(pollers: usize) -> Self {
        let state = State { in_flight: 0, generation: 0, empty_at: vec![None; pollers] };
        // A worker that only sends on schedule has nothing that could become empty.
        Self {
            state: Mutex::new(state),
            idle: watch::Sender::new(pollers == 0),
            quiet: watch::Sender::new(0),
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = lock(&self.state);
        change(&mut state);
        if state.in_flight == 0 {
            self.quiet.send_if_modified(|was| std::mem::replace(was, state.generation) != state.generation);
        }
        let idle = state.in_flight == 0 && state.empty_at.iter().all(|at| *at == Some(state.generation));
        self.idle.send_if_modified(|was| std::mem::replace(was, idle) != idle);
    }

    /// The generation to report with [`found_empty`](Self::found_empty), read before the queue is looked at.
    pub(super) fn generation(&self) -> u64 {
        lock(&self.state).generation
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
        let mut quiet = self.quiet.subscribe();
        // The sender lives as long as `self`.
        let _ = quiet.wait_for(|now| *now > generation).await;
    }

    /// Resolves when no job is running and every queue was found empty since the last one ended.
    pub(super) async fn idle(&self) {
        let mut idle = self.idle.subscribe();
        // The sender lives as long as `self`.
        let _ = idle.wait_for(|idle| *idle).await;
    }
}
