//! The open store.

use std::fmt;
use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::arrivals::ArrivalHub;
use crate::combine::Combiner;
use crate::database::Database;
use crate::purge::Purge;
use crate::receipt::Deletion;
use crate::scans::Scans;
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::{PutMessage, PutOutcome, QueueName};

/// The approximate number of bytes of an operation besides a text.
const ROW: usize = 64;

/// A store of queues and blobs in one schema of a database.
pub(crate) struct Store {
    pub(crate) database: Arc<Database>,
    pub(crate) runtime: Runtime,
    pub(crate) puts: Arc<Puts>,
    pub(crate) deletions: Arc<Deletions>,
    /// Limits the connections of operations that others hold up.
    pub(crate) held_up: Arc<Semaphore>,
    pub(crate) scans: Scans,
    pub(crate) purge: Arc<Purge>,
    /// Shared by all handles of this process.
    pub(crate) arrivals: Arc<ArrivalHub>,
}

/// Joins puts. An answer of `Err` returns a message that another transaction holds up.
pub(crate) type Puts = Combiner<(QueueName, PutLane), PutMessage, Result<PutOutcome, PutMessage>>;
/// Joins deletions. An answer of `Err` returns one that another transaction holds up.
pub(crate) type Deletions = Combiner<QueueName, Deletion, Result<(), Deletion>>;

/// The puts of a queue that share statements, so that those that wait for others hold up no more than they must.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum PutLane {
    WithoutGroup,
    InGroups,
    /// Those into a group that another transaction holds up.
    HeldUp(String),
}

impl Store {
    pub(crate) fn new(database: Arc<Database>, runtime: Runtime, arrivals: Arc<ArrivalHub>) -> Self {
        let (limit, connections) = (database.settings().timeout, database.settings().max_connections);
        Self {
            purge: Purge::new(Arc::clone(&database), runtime.clone(), Arc::clone(&arrivals)),
            puts: Combiner::new(runtime.clone(), limit, |message| ROW + message.text.len()),
            deletions: Combiner::new(runtime.clone(), limit, |_| ROW),
            held_up: Arc::new(Semaphore::new((connections / 2).max(1))),
            database,
            runtime,
            scans: Scans::default(),
            arrivals,
        }
    }

    /// Returns a handle with connections of its own: those of the renewer of leases, which needs few.
    pub(crate) fn again(&self) -> Self {
        const RENEWING: usize = 2;
        let database = self.database.again(RENEWING).map_or_else(|_| Arc::clone(&self.database), Arc::new);
        Self::new(database, self.runtime.clone(), Arc::clone(&self.arrivals))
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Store").field(&self.database).finish()
    }
}
