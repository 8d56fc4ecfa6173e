//! The storages behind the accounts of a world.

use jobqueue::Runtime;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jobqueue::Storage;
use jobqueue::clock::Clock;
use jobqueue::sqlite::{Options, Synchronous};
use jobqueue_testing::world::Builder;
use tempfile::TempDir;

use super::bus;
use super::plan::Plan;

/// The kind of storage behind the accounts.
#[derive(Debug, Clone)]
pub(super) enum Backend {
    /// A storage in memory that behaves as Azure Storage does.
    AzureLike,
    /// A SQLite file for each account, in this folder.
    Sqlite(Arc<TempDir>),
    /// Service Bus with blobs in memory. Its queues require sessions or not.
    ServiceBus { sessions: bool },
}

impl Backend {
    pub(super) fn sqlite() -> Self {
        Self::Sqlite(Arc::new(tempfile::tempdir().unwrap()))
    }

    /// Returns whether the storage of a world keeps the order by itself, which shards do not; see `Sharded`.
    pub(super) fn orders_by_sessions(&self, plan: &Plan) -> bool {
        matches!(self, Self::ServiceBus { sessions: true }) && plan.spread == (1, 1)
    }

    pub(super) fn of(&self, world: Builder, plan: &Plan) -> Builder {
        match self {
            Self::AzureLike => world,
            Self::Sqlite(folder) => {
                let folder = Arc::clone(folder);
                world.storage(move |clock| open(Arc::clone(&folder), clock))
            }
            Self::ServiceBus { sessions } => bus::of(world, plan, *sessions),
        }
    }
}

async fn open(folder: Arc<TempDir>, clock: Arc<dyn Clock>) -> Storage {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let file = folder.path().join(format!("{}.db", COUNT.fetch_add(1, Ordering::Relaxed)));
    // Worlds have no power cuts.
    Storage::open(
        Options::new(file).runtime(Runtime::new().with_clock(clock)).synchronous(Synchronous::Normal),
    )
    .await
    .unwrap()
}
