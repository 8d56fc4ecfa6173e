//! The thread that renews leases.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::deadline_queue::{DeadlineQueue, Slot};
use super::owner::Lease;
use crate::task;

/// The maximum number of concurrent renewals.
const CONCURRENT_RENEWALS: usize = 256;

/// Renews leases. One thread and one deadline queue serve any number of leases: the cost is per request, not per
/// lease.
#[derive(Debug, Clone)]
pub(crate) struct LeaseRenewer {
    deadlines: Arc<DeadlineQueue>,
    runtime: Handle,
}

static PROCESS: OnceLock<LeaseRenewer> = OnceLock::new();

impl LeaseRenewer {
    /// Returns the renewer of this process. The first call starts its thread.
    ///
    /// # Errors
    /// The operating system refused the thread.
    pub(crate) fn process() -> io::Result<Self> {
        if let Some(renewer) = PROCESS.get() {
            return Ok(renewer.clone());
        }
        let renewer = Self::start_thread()?;
        Ok(PROCESS.get_or_init(|| renewer).clone())
    }

    fn start_thread() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let renewer = Self { deadlines: Arc::default(), runtime: runtime.handle().clone() };
        let deadlines = Arc::downgrade(&renewer.deadlines);
        std::thread::Builder::new()
            .name("jobqueue-leases".to_owned())
            .spawn(move || runtime.block_on(serve(deadlines)))?;
        Ok(renewer)
    }

    /// Returns a renewer on the current runtime, which must not be blocked. For tests on paused time.
    pub(crate) fn on_this_runtime() -> Self {
        let renewer = Self { deadlines: Arc::default(), runtime: Handle::current() };
        drop(task::spawn_on(&renewer.runtime, serve(Arc::downgrade(&renewer.deadlines))));
        renewer
    }

    /// Returns the renewer's runtime, for other leases that must not depend on the application's use of its runtime.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Returns the time by which the renewals are behind: since when a lease has been due that nobody has looked at.
    pub(crate) fn behind(&self) -> Duration {
        self.deadlines.overdue()
    }

    /// Runs a future to its end on the renewer's runtime, even if the caller is dropped. `None` if the process is
    /// ending.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        task::spawn_on(&self.runtime, future).await.ok()
    }

    /// Runs a future on the renewer's runtime in the background.
    pub(super) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        drop(task::spawn_on(&self.runtime, future));
    }

    pub(super) fn watch(&self, at: tokio::time::Instant, lease: Weak<Lease>) -> Slot {
        self.deadlines.insert(at, lease)
    }

    pub(super) fn forget(&self, slot: Slot) {
        self.deadlines.remove(slot);
    }

    #[cfg(test)]
    pub(super) fn watched(&self) -> usize {
        self.deadlines.len()
    }
}

/// Renews due leases until the last handle to the renewer is dropped.
async fn serve(deadlines: Weak<DeadlineQueue>) {
    let permits = Arc::new(Semaphore::new(CONCURRENT_RENEWALS));
    // One task for each request under way, not for each due lease.
    let mut waiting: VecDeque<Weak<Lease>> = VecDeque::new();
    while let Some(deadlines) = deadlines.upgrade() {
        tokio::select! {
            biased;
            due = deadlines.due() => {
                let due = due.iter().filter_map(Weak::upgrade).filter(|lease| lease.is_renewal_due());
                waiting.extend(due.map(|lease| Arc::downgrade(&lease)));
            }
            Ok(permit) = Arc::clone(&permits).acquire_owned(), if !waiting.is_empty() => {
                if let Some(lease) = waiting.pop_front().and_then(|lease| lease.upgrade()) {
                    task::spawn(async move {
                        lease.renew().await;
                        drop(permit);
                    });
                }
            }
        }
    }
}
