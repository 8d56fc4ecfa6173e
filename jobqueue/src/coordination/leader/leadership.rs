//! A leadership, as the leader sees it.

use std::fmt;
use std::sync::{Arc, Mutex};

use tokio::task::JoinHandle;
use tokio::time::{sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::hold::{LeaderLease, LeadershipEnd};
use crate::sync::lock;

/// One term of leadership. The lease is renewed as long as this value exists. Dropping the value releases the
/// lease in the background; [`release`](Self::release) waits until the lease is released.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use jobqueue::Storage;
/// use jobqueue::leader::Leader;
///
/// let storage = Storage::memory();
/// if let Some(leadership) = Leader::new(&storage, "billing")?.try_lead().await? {
///     println!("the leader of term {}", leadership.term());
///     leadership.release().await;
/// }
/// # Ok(()) }
/// ```
#[must_use = "a leadership that is dropped is released"]
pub struct Leadership {
    pub(super) lease: Arc<LeaderLease>,
    /// The renewal task; `None` in copies for the work, which do not release the lease.
    renewals: Option<Mutex<Option<JoinHandle<()>>>>,
}

impl Leadership {
    pub(super) fn new(lease: Arc<LeaderLease>, renewals: JoinHandle<()>) -> Self {
        Self { lease, renewals: Some(Mutex::new(Some(renewals))) }
    }

    /// Returns a copy for the work. Dropping the copy does not end the leadership.
    pub(in crate::coordination) fn share(&self) -> Self {
        Self { lease: Arc::clone(&self.lease), renewals: None }
    }

    /// Returns the number of this term. The number grows with every change of the leader, and no two leaders
    /// ever have the same number. Use it as a fencing token: a resource that refuses a lower term than it has
    /// seen cannot be changed by a former leader.
    ///
    /// Terms begin at the seconds since 1970, not at 1. If the blob that holds the term is deleted or
    /// overwritten, the next term is still higher, provided that clocks agree and leaders changed less than
    /// once a second.
    pub fn term(&self) -> u64 {
        self.lease.term
    }

    /// Returns a token that fires when the work must end: one sixth of the lease before the lease can expire,
    /// or when the lease is lost.
    pub fn token(&self) -> &CancellationToken {
        &self.lease.ending
    }

    /// Returns whether the lease certainly has not expired yet, by the monotonic clock. Check before every
    /// step that only a leader may take.
    pub fn has_control(&self) -> bool {
        self.lease.has_control()
    }

    /// Releases the leadership and waits until other candidates can acquire it. The call has no effect on the
    /// copy that [`run_while_leader`](super::Leader::run_while_leader) gives to the work; the work ends its
    /// leadership by returning.
    ///
    /// # Cancel safety
    /// The lease is released even if the future is dropped.
    pub async fn release(&self) {
        let Some(renewals) = &self.renewals else { return };
        self.lease.ending.cancel();
        self.lease.closed.cancel();
        let task = lock(renewals).take();
        if let Some(task) = task {
            drop(task.await);
        }
    }

    /// Runs `work`, and keeps the leadership only while the calling task is polled: if a handler, or the work
    /// itself, blocks the thread for two minutes, the lease is released, so that another candidate can lead.
    #[cfg_attr(not(feature = "schedule"), allow(dead_code, reason = "only schedules need it"))]
    pub(in crate::coordination) async fn while_polled<T>(&self, work: impl Future<Output = T>) -> T {
        let polls = async {
            loop {
                self.lease.note_polled();
                sleep(self.lease.blob.lease / 3).await;
            }
        };
        tokio::select! {
            biased;
            output = polls => output,
            output = work => output,
        }
    }

    /// Waits until the work must end. Returns the reason, or `None` if the leadership was released.
    #[cfg_attr(not(feature = "schedule"), allow(dead_code, reason = "only schedules need it"))]
    pub(in crate::coordination) async fn ended(&self) -> Option<LeadershipEnd> {
        self.lease.ending.cancelled().await;
        self.lease.end()
    }

    /// Waits until control has ended.
    pub(super) async fn control_ended(&self) {
        while self.has_control() {
            let until = self.lease.control_until();
            tokio::select! {
                biased;
                () = sleep_until(until) => {}
                // Wakes once, to check whether the lease is lost. If it is not, the work has until `until`.
                () = self.lease.ending.cancelled(), if !self.lease.ending.is_cancelled() => {}
            }
        }
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        if self.renewals.is_some() {
            self.lease.ending.cancel();
            self.lease.closed.cancel();
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
