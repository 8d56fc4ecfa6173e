//! The thread that renews leases.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::sync::{Arc, OnceLock, Weak};

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::owner::Lease;
use super::wheel::{Slot, Wheel};

/// The most renewals under way at once.
const CONCURRENT_RENEWALS: usize = 256;

/// Renews leases. One thread and one deadline wheel serve any number of leases: what costs is requests, not leases.
#[derive(Debug, Clone)]
pub(crate) struct Keeper {
    wheel: Arc<Wheel>,
    runtime: Handle,
}

static PROCESS: OnceLock<Keeper> = OnceLock::new();

impl Keeper {
    /// The keeper of this process, on a thread of its own; started at the first call.
    ///
    /// # Errors
    /// When the operating system refuses the thread.
    pub(crate) fn process() -> io::Result<Self> {
        if let Some(keeper) = PROCESS.get() {
            return Ok(keeper.clone());
        }
        let keeper = Self::start_thread()?;
        Ok(PROCESS.get_or_init(|| keeper).clone())
    }

    fn start_thread() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let keeper = Self { wheel: Arc::default(), runtime: runtime.handle().clone() };
        let wheel = Arc::downgrade(&keeper.wheel);
        std::thread::Builder::new()
            .name("jobqueue-leases".to_owned())
            .spawn(move || runtime.block_on(turn(wheel)))?;
        Ok(keeper)
    }

    /// A keeper on the current runtime, which then must not be blocked. For tests on paused time.
    pub(crate) fn on_this_runtime() -> Self {
        let keeper = Self { wheel: Arc::default(), runtime: Handle::current() };
        keeper.runtime.spawn(turn(Arc::downgrade(&keeper.wheel)));
        keeper
    }

    /// The keeper's runtime, for others whose leases must not depend on what the application does with its own.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Runs a future on the keeper's runtime to its end, whatever becomes of the caller. `None` if the process is ending.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        self.runtime.spawn(future).await.ok()
    }

    /// Runs a future on the keeper's runtime in the background.
    pub(super) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(future));
    }

    pub(super) fn watch(&self, at: tokio::time::Instant, lease: Weak<Lease>) -> Slot {
        self.wheel.insert(at, lease)
    }

    pub(super) fn forget(&self, slot: Slot) {
        self.wheel.remove(slot);
    }

    #[cfg(test)]
    pub(super) fn watched(&self) -> usize {
        self.wheel.len()
    }
}

/// Turns the wheel until nobody has a keeper any more.
async fn turn(wheel: Weak<Wheel>) {
    let permits = Arc::new(Semaphore::new(CONCURRENT_RENEWALS));
    // A task for each request under way, not for each lease that is due.
    let mut waiting: VecDeque<Weak<Lease>> = VecDeque::new();
    while let Some(wheel) = wheel.upgrade() {
        tokio::select! {
            biased;
            due = wheel.due() => {
                let due = due.iter().filter_map(Weak::upgrade).filter(|lease| lease.is_renewal_due());
                waiting.extend(due.map(|lease| Arc::downgrade(&lease)));
            }
            Ok(permit) = Arc::clone(&permits).acquire_owned(), if !waiting.is_empty() => {
                if let Some(lease) = waiting.pop_front().and_then(|lease| lease.upgrade()) {
                    tokio::spawn(async move {
                        lease.renew().await;
                        drop(permit);
                    });
                }
            }
        }
    }
}
