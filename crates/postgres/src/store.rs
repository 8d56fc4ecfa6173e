//! The open store.

use std::fmt;
use std::sync::Arc;

use crate::arrivals::ArrivalHub;
use crate::combine::Combiner;
use crate::database::Database;
use crate::purge::Purge;
use crate::receipt::Deletion;
use crate::scans::Scans;
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::{PutMessage, PutOutcome};

/// The approximate number of bytes of an operation besides a text.
const ROW: usize = 64;

/// A store of queues and blobs in one schema of a database.
pub(crate) struct Store {
    pub(crate) database: Arc<Database>,
    pub(crate) runtime: Runtime,
    pub(crate) puts: Arc<Combiner<PutMessage, PutOutcome>>,
    pub(crate) deletions: Arc<Combiner<Deletion, ()>>,
    pub(crate) scans: Scans,
    pub(crate) purge: Purge,
    /// Shared by all handles of this process.
    pub(crate) arrivals: Arc<ArrivalHub>,
}

impl Store {
    pub(crate) fn new(database: Arc<Database>, runtime: Runtime, arrivals: Arc<ArrivalHub>) -> Self {
        Self {
            purge: Purge::new(Arc::clone(&database)),
            database,
            puts: Combiner::new(runtime.clone(), |message| ROW + message.text.len()),
            deletions: Combiner::new(runtime.clone(), |_| ROW),
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
