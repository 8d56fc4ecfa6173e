//! The state of the scans for visible messages in this process, by queue.

mod bound;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::pace::Pace;
use jobqueue_storage::QueueName;
use jobqueue_storage::sync::lock;

pub(crate) use bound::{Bound, Scan};

/// The least time between two scans from the beginning.
const WHOLE: Duration = Duration::from_secs(5);
/// The time after which a scan takes a number although it may find nothing.
const NUMBER: Duration = Duration::from_secs(1);

/// The states of the scans of a store's queues.
#[derive(Debug, Default)]
pub(crate) struct Scans(Mutex<HashMap<QueueName, Arc<ScanState>>>);

impl Scans {
    pub(crate) fn of(&self, queue: &QueueName) -> Arc<ScanState> {
        Arc::clone(lock(&self.0).entry(queue.clone()).or_default())
    }
}

/// The state of the scans of a queue.
#[derive(Debug)]
pub(crate) struct ScanState {
    shared: Mutex<Shared>,
    whole: Pace,
    number: Pace,
    /// The searches for a message that becomes visible in the far future.
    pub(crate) far: Pace,
}

#[derive(Debug, Default)]
struct Shared {
    bound: Bound,
    /// The number of scans that were broken off. What they had locked lies before the bounds of others that ran meanwhile.
    broken: u64,
}

impl Default for ScanState {
    fn default() -> Self {
        let (whole, number, far) = (Pace::new(WHOLE), Pace::new(NUMBER), Pace::new(Duration::ZERO));
        Self { shared: Mutex::default(), whole, number, far }
    }
}

/// A scan under way. Unless it [ends](Self::end), the next one begins at the beginning.
pub(crate) struct Attempt<'s> {
    state: &'s ScanState,
    pub(crate) bound: Bound,
    /// True if the scan is to take a number.
    pub(crate) takes_number: bool,
    broken: u64,
    /// The beginning of a scan of the whole queue.
    whole: Option<Instant>,
    has_ended: bool,
}

impl<'s> Attempt<'s> {
    pub(crate) fn begin(state: &'s ScanState) -> Self {
        let whole = state.whole.begin().then(Instant::now);
        let shared = lock(&state.shared);
        let bound = if whole.is_some() { Bound::default() } else { shared.bound.clone() };
        let takes_number = state.number.begin();
        Self { state, bound, takes_number, broken: shared.broken, whole, has_ended: false }
    }

    pub(crate) fn end(mut self, scan: &Scan) {
        self.has_ended = true;
        let mut shared = lock(&self.state.shared);
        let is_broken = shared.broken != self.broken;
        shared.bound = if is_broken { Bound::default() } else { self.bound.after(scan) };
        if let Some(began) = self.whole {
            self.state.whole.end(began.elapsed());
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            let mut shared = lock(&self.state.shared);
            *shared = Shared { bound: Bound::default(), broken: shared.broken + 1 };
        }
    }
}
