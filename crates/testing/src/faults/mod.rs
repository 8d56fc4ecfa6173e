//! Planned faults: a storage wrapper that loses answers, refuses, delays or hangs at the n-th call of an
//! operation.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! use jobqueue::storage::{Operation, PutMessage, StoreErrorKind};
//! use jobqueue_testing::faults::{Fault, Faulty};
//! use jobqueue::{QueueName, memory};
//!
//! let faulty = Faulty::quiet(&memory::open());
//! let storage = faulty.storage();
//! let queue = QueueName::new("jobs").unwrap();
//! storage.queues().create_queue(&queue, &Default::default()).await.unwrap();
//!
//! // The first put is stored, but its answer is lost.
//! faulty.plan(Operation::Put, 1, Fault::DropAnswer(StoreErrorKind::Timeout));
//! let lost = storage.queues().put(&queue, PutMessage::new("job")).await.unwrap_err();
//! assert!(lost.is_ambiguous());
//! assert_eq!(storage.queues().peek(&queue, 1).await.unwrap().len(), 1);
//! assert_eq!(faulty.calls_of(Operation::Put), 1);
//! # }
//! ```

mod around;
mod azure_like;
mod plan;
mod still;

use std::sync::{Arc, Mutex};

use jobqueue::storage::{Guarantees, Operation, Storage, Stores};

use around::Planned;
pub use azure_like::AzureLike;
pub(super) use azure_like::lost;
use plan::Plan;
pub use plan::{Call, Fault};
pub(super) use still::StillClock;

/// A storage that fails as planned and records its calls. Cheap to clone; all clones share one plan.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use jobqueue::{JobError, QueueMessage, Runtime, Worker, memory}; use serde::{Deserialize, Serialize};
/// # use std::time::Duration;
/// # #[derive(Serialize, Deserialize, QueueMessage)]
/// # #[message(queue = "mails", kind = "mail")] struct Mail {}
/// # async fn deliver(_: Mail) -> Result<(), JobError> { Ok(()) }
/// use jobqueue::storage::{Operation, StoreErrorKind};
/// use jobqueue_testing::faults::{Fault, Faulty};
///
/// let faulty = Faulty::new(&memory::open_on(Runtime::paused()));
/// faulty.storage().queue::<Mail>().await?.send(&Mail {}).await?;
/// // The answer to the deletion is lost. The job still does not run again.
/// faulty.plan(Operation::DeleteAll, 1, Fault::DropAnswer(StoreErrorKind::Timeout));
/// let worker = Worker::builder(faulty.storage()).handle(deliver);
/// let report = worker.build()?.run_until(tokio::time::sleep(Duration::from_secs(120))).await?;
/// assert_eq!(report.completed + report.uncertain, 1);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Faulty {
    storage: Storage,
    plan: Arc<Plan>,
}

impl Faulty {
    /// Wraps `storage` at the distance of an Azure Storage account ([`AzureLike`]), with no faults planned
    /// yet. Every call takes 5–60 ms, or 2–30 ms if a fault is planned for it. A throttled change may have
    /// been applied.
    ///
    /// The delays are the same in every run. They need tokio's clock: pause time in the test, or else use
    /// [`quiet`](Self::quiet).
    pub fn new(storage: &impl AsRef<Stores>) -> Self {
        Self::with_profile(storage, AzureLike::default())
    }

    /// Wraps `storage` like [`new`](Self::new). In addition, calls without a planned fault fail at the rate
    /// of `profile`.
    pub fn with_profile(storage: &impl AsRef<Stores>, profile: AzureLike) -> Self {
        let stores = storage.as_ref();
        Self::distant(stores, Shape::of(stores), profile)
    }

    /// Wraps `storage` without latency. A throttled call is certainly not performed. Use it for tests in real
    /// time, and for tests whose timing latency would blur.
    pub fn quiet(storage: &impl AsRef<Stores>) -> Self {
        let stores = storage.as_ref();
        Self::over(stores, Shape::of(stores), Plan::default())
    }

    /// Wraps `storage` like [`new`](Self::new), but workers delete each message by a separate request, as on
    /// Azure: by [`Operation::Delete`] instead of [`Operation::DeleteAll`].
    pub fn deleting_one_by_one(storage: &impl AsRef<Stores>) -> Self {
        let stores = storage.as_ref();
        let mut shape = Shape::of(stores);
        shape.guarantees.commits_together = false;
        Self::distant(stores, shape, AzureLike::default())
    }

    /// Wraps `storage` like [`new`](Self::new), but leaves it its [order of
    /// groups](jobqueue::storage::OrderedGroups), if it has one. The other wrappers hide that power, so that
    /// the framework keeps the order in a log, as on Azure's queues.
    pub fn ordering_groups(storage: &impl AsRef<Stores>) -> Self {
        let stores = storage.as_ref();
        let shape = Shape { orders_groups: true, ..Shape::of(stores) };
        Self::distant(stores, shape, AzureLike::default())
    }

    /// Wraps `storage` without latency and with its own powers, except that it announces arrivals only if
    /// `notifies`.
    pub(super) fn native(storage: &Storage, notifies: bool) -> Self {
        let stores = storage.stores();
        Self::over(stores, Shape { notifies, orders_groups: true, ..Shape::of(stores) }, Plan::default())
    }

    /// Wraps a storage that has its own threads, so that no virtual time passes during its calls.
    pub(super) fn still(storage: &Storage, clock: Arc<StillClock>) -> Self {
        let stores = storage.stores();
        Self::over(stores, Shape { orders_groups: true, ..Shape::of(stores) }, Plan::still(clock))
    }

    fn over(stores: &Stores, shape: Shape, plan: Plan) -> Self {
        let plan = Arc::new(plan);
        let planned = Arc::new(Planned { plan: Arc::clone(&plan), shape });
        let storage = Storage::from(stores.intercepted(&planned));
        Self { storage, plan }
    }

    /// Returns the wrapped storage, which fails as planned. Its detached handles follow the same plan.
    pub fn storage(&self) -> Storage {
        self.storage.clone()
    }

    /// Plans a fault for the `nth` call of an operation, counted from 1 from now on.
    pub fn plan(&self, operation: Operation, nth: u64, fault: Fault) {
        let mut script = self.plan.lock();
        let called = script.counts.get(&operation).copied().unwrap_or_default();
        script.faults.entry((operation, called + nth)).or_default().push_back(fault);
    }

    /// Plans a fault for every call of an operation that has no other planned fault, until
    /// [`heal`](Self::heal).
    pub fn plan_always(&self, operation: Operation, fault: Fault) {
        self.plan.lock().always.insert(operation, fault);
    }

    /// Removes all planned faults, but no hooks and no behaviour. Calls that hang continue to hang.
    pub fn heal(&self) {
        let mut script = self.plan.lock();
        script.faults.clear();
        script.always.clear();
    }

    /// Calls `hook` before each call of an operation, to signal the test or to choose a fault for that call.
    /// A hook must not call the same operation through the wrapped storage, because it would wait for itself;
    /// it can use the storage inside.
    pub fn on(&self, operation: Operation, hook: impl FnMut(&Call) -> Option<Fault> + Send + 'static) {
        self.plan.lock().hooks.entry(operation).or_default().push(Arc::new(Mutex::new(hook)));
    }

    /// Calls `behaviour` for each call and applies the returned faults in order. A planned fault replaces all
    /// of them except [`Fault::DelayBefore`].
    pub fn behave(&self, behaviour: impl Fn(&Call) -> Vec<Fault> + Send + Sync + 'static) {
        self.plan.lock().behaviour = Some(Arc::new(behaviour));
    }

    /// Returns all calls so far, in order.
    pub fn calls(&self) -> Vec<Call> {
        self.plan.lock().calls.clone()
    }

    /// Returns the number of calls of an operation so far.
    pub fn calls_of(&self, operation: Operation) -> usize {
        self.plan.lock().calls.iter().filter(|call| call.operation == operation).count()
    }
}

/// The guarantees and powers that the wrapped storage reports.
#[derive(Debug, Clone, Copy)]
struct Shape {
    guarantees: Guarantees,
    notifies: bool,
    orders_groups: bool,
}

impl Shape {
    /// Returns the shape of `stores`, without the order of groups: the framework keeps it, as on Azure's
    /// queues.
    fn of(stores: &Stores) -> Self {
        Self { guarantees: stores.queues.guarantees(), notifies: true, orders_groups: false }
    }

    /// Returns the shape of Azure Storage.
    fn of_azure() -> Self {
        let guarantees = Guarantees { counts_deliveries: true, ..Guarantees::default() };
        Self { guarantees, notifies: false, orders_groups: false }
    }
}
