//! The thread that renews leases. `owner` decides which leases are due, and `operation` sends the requests.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::deadline_queue::{DeadlineKey, DeadlineQueue};
use super::owner::Lease;
use crate::runtime::Runtime;

/// The maximum number of renewals in flight that hold a permit.
const CONCURRENT_RENEWALS: usize = 256;
/// The time after which a renewal without an answer releases its permit and goes on: a storage that hangs
/// must not hold up the renewals on other storages.
const MAX_PERMIT_TIME: Duration = Duration::from_secs(1);

/// Renews leases. One thread and one deadline queue serve any number of leases: the cost is per request, not
/// per lease.
#[derive(Debug, Clone)]
pub(crate) struct LeaseRenewer {
    deadlines: Arc<DeadlineQueue>,
    handle: Handle,
    runtime: Runtime,
}

static PROCESS: OnceLock<LeaseRenewer> = OnceLock::new();

impl LeaseRenewer {
    /// Returns the renewer of this process, whose thread the first call starts. If `runtime` starts no
    /// threads, returns a new renewer on the current tokio runtime.
    pub(crate) fn of(runtime: &Runtime) -> io::Result<Self> {
        if runtime.starts_threads() { Self::process() } else { Ok(Self::on_this_runtime(runtime)) }
    }

    /// Starts a task on the runtime where leases are renewed, so that it does not depend on the application's
    /// tokio runtime.
    pub(crate) fn spawn_detached<T: Send + 'static>(
        runtime: &Runtime,
        future: impl Future<Output = T> + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let handle = if runtime.starts_threads() { Self::process()?.handle } else { Handle::current() };
        Ok(runtime.spawn_on(&handle, future))
    }

    fn process() -> io::Result<Self> {
        if let Some(renewer) = PROCESS.get() {
            return Ok(renewer.clone());
        }
        let renewer = Self::start_thread()?;
        Ok(PROCESS.get_or_init(|| renewer).clone())
    }

    fn start_thread() -> io::Result<Self> {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (handle, runtime) = (tokio.handle().clone(), Runtime::new());
        let renewer = Self { deadlines: Arc::default(), handle, runtime: runtime.clone() };
        let deadlines = Arc::downgrade(&renewer.deadlines);
        std::thread::Builder::new()
            .name("jobqueue-leases".to_owned())
            .spawn(move || tokio.block_on(serve(deadlines, runtime)))?;
        Ok(renewer)
    }

    /// Returns a renewer on the current tokio runtime, which must not be blocked.
    pub(super) fn on_this_runtime(runtime: &Runtime) -> Self {
        let renewer = Self { deadlines: Arc::default(), handle: Handle::current(), runtime: runtime.clone() };
        renewer.spawn(serve(Arc::downgrade(&renewer.deadlines), runtime.clone()));
        renewer
    }

    /// Returns the runtime from which renewals draw their jitter.
    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Returns how late renewals are: the time for which the oldest unsent renewal has been due.
    pub(crate) fn behind(&self) -> Duration {
        self.deadlines.overdue()
    }

    /// Runs a future to completion on the renewer's runtime, even if the caller is dropped. `None` if the
    /// process is ending.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        self.start(future).await.ok()
    }

    /// Runs a future on the renewer's runtime in the background.
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        drop(self.start(future));
    }

    /// Starts a task on the renewer's runtime.
    pub(super) fn start<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.runtime.spawn_on(&self.handle, future)
    }

    pub(super) fn watch(&self, at: tokio::time::Instant, lease: Weak<Lease>) -> DeadlineKey {
        self.deadlines.insert(at, lease)
    }

    pub(super) fn forget(&self, deadline_key: DeadlineKey) {
        self.deadlines.remove(deadline_key);
    }

    #[cfg(test)]
    pub(super) fn watched(&self) -> usize {
        self.deadlines.len()
    }
}

/// Renews due leases until the last handle to the renewer is dropped.
async fn serve(deadlines: Weak<DeadlineQueue>, runtime: Runtime) {
    let permits = Arc::new(Semaphore::new(CONCURRENT_RENEWALS));
    while let Some(deadlines) = deadlines.upgrade() {
        tokio::select! {
            biased;
            due = deadlines.due() => {
                let due = due.iter().filter_map(Weak::upgrade).filter(|lease| lease.is_renewal_due());
                due.for_each(|lease| deadlines.push_waiting(Arc::downgrade(&lease)));
            }
            Ok(permit) = Arc::clone(&permits).acquire_owned(), if deadlines.has_waiting() => {
                // One task for each renewal in flight, not for each due lease.
                if let Some(lease) = deadlines.next_waiting().and_then(|lease| lease.upgrade()) {
                    drop(runtime.spawn(renew(lease, permit)));
                }
            }
        }
    }
}

async fn renew(lease: Arc<Lease>, permit: OwnedSemaphorePermit) {
    let mut renewal = pin!(lease.renew());
    if timeout(MAX_PERMIT_TIME, &mut renewal).await.is_err() {
        drop(permit);
        renewal.await;
    }
}

#[cfg(test)]
mod tests;
