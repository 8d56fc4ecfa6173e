//! Leadership, as those who lead see it.

use std::fmt;
use std::sync::{Arc, Mutex};

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::hold::{End, Hold};
use crate::sync::lock;

/// One term of leadership. The lease is renewed as long as this exists, and released in the background when it is
/// dropped; [`release`](Self::release) waits for it.
#[must_use = "a leadership that is dropped is released"]
pub struct Leadership {
    hold: Arc<Hold>,
    /// Of the one that releases when it is dropped.
    renewals: Option<Mutex<Option<JoinHandle<()>>>>,
}

impl Leadership {
    pub(super) fn new(hold: Arc<Hold>, renewals: JoinHandle<()>) -> Self {
        Self { hold, renewals: Some(Mutex::new(Some(renewals))) }
    }

    /// For the work: sees everything and ends nothing when it is dropped.
    pub(super) fn share(&self) -> Self {
        Self { hold: Arc::clone(&self.hold), renewals: None }
    }

    /// The number of this term. It grows with every change of the leader, and no two leaders ever have the same, which makes
    /// it a fence: whoever refuses a lower term than it has seen cannot be changed by a leader of the past.
    ///
    /// Terms begin at the seconds since 1970, not at 1: if the blob that keeps them is deleted or written over, the next is still higher, as
    /// long as there was less than a change a second and clocks agree.
    pub fn term(&self) -> u64 {
        self.hold.term()
    }

    /// Fires when the work has to end: a sixth of the lease before it can expire, or when it is lost.
    pub fn token(&self) -> &CancellationToken {
        &self.hold.ending
    }

    /// Returns whether the lease cannot have expired yet, by the monotonic clock. To be asked before every step that only a leader
    /// may take.
    pub fn has_control(&self) -> bool {
        self.hold.has_control()
    }

    /// Gives leadership up and waits until others can take it. Without effect on the copy that
    /// [`run_while_leader`](super::Leader::run_while_leader) gives to the work, which ends it by returning.
    ///
    /// # Cancel safety
    /// The lease is released even if the future is dropped.
    pub async fn release(&self) {
        let Some(renewals) = &self.renewals else { return };
        self.hold.ending.cancel();
        self.hold.closed.cancel();
        let task = lock(renewals).take();
        if let Some(task) = task {
            drop(task.await);
        }
    }

    /// Waits until there is no control any more.
    pub(super) async fn over(&self) {
        loop {
            let until = self.hold.control_until();
            tokio::select! {
                biased;
                () = sleep_until(until) => {}
                () = self.hold.ending.cancelled() => sleep_while_controlled(&self.hold).await,
            }
            if !self.has_control() {
                return;
            }
        }
    }

    pub(super) fn end(&self) -> Option<End> {
        self.hold.end()
    }
}

/// The time between the token and the end.
async fn sleep_while_controlled(hold: &Hold) {
    if hold.has_control() {
        sleep_until(hold.control_until().max(Instant::now())).await;
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        if self.renewals.is_some() {
            self.hold.ending.cancel();
            self.hold.closed.cancel();
        }
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership")
            .field("term", &self.term())
            .field("control", &self.has_control())
            .finish()
    }
}
