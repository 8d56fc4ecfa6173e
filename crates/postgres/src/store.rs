//! The open store.

use std::sync::Arc;

use crate::arrivals::ArrivalHub;
use crate::combine::Combiner;
use crate::database::Database;
use crate::held::HeldUp;
use crate::purge::Purge;
use crate::receipt::ReceiptUse;
use crate::scans::Scans;
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::{PutMessage, PutOutcome, QueueName, TransactionPlace, Updated};
use tokio::sync::{Semaphore, oneshot};

/// The approximate number of bytes of an operation, without its text.
const ROW_BYTES: usize = 64;

/// A store of queues and blobs in one schema of a database.
pub(crate) struct Store {
    pub(crate) database: Arc<Database>,
    pub(crate) runtime: Runtime,
    pub(crate) puts: Arc<Puts>,
    pub(crate) deletions: Arc<Deletions>,
    pub(crate) renewals: Arc<Renewals>,
    pub(crate) held: Arc<HeldUp>,
    /// Limits how many messages are put back at once on the handle for renewals.
    pub(crate) releases: Semaphore,
    pub(crate) scans: Scans,
    pub(crate) purge: Arc<Purge>,
    /// Shared by all handles of this process.
    pub(crate) arrivals: Arc<ArrivalHub>,
}

/// Combines puts. The answer `Err` returns a message that another transaction holds up.
pub(crate) type Puts = Combiner<(QueueName, PutLane), PutMessage, Result<PutOutcome, PutMessage>>;
/// Combines deletions. The answer `Err` returns a deletion that another transaction holds up.
pub(crate) type Deletions = Combiner<DeleteLane, ReceiptUse, Result<(), ReceiptUse>>;

/// Combines the renewals of a queue whose leases have equal length, in whole seconds. The answer is the
/// change, and whether the message becomes visible earlier; `None` if the renewal was refused.
pub(crate) type Renewals = Combiner<(QueueName, i64), WaitingRenewal, Option<(Updated, bool)>>;
/// A renewal, and a sender that closes when the caller drops its future.
pub(crate) type WaitingRenewal = (Renewal, oneshot::Sender<()>);

pub(crate) struct Renewal {
    pub(crate) offered: ReceiptUse,
    pub(crate) visibility: i64,
    pub(crate) receipt: Vec<u8>,
}

/// The lane of a deletion. Deletions that were held up have a separate lane, so that they do not delay the
/// others.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct DeleteLane {
    pub(crate) queue: QueueName,
    pub(crate) is_held_up: bool,
}

/// The lane of a put. Puts move to narrower lanes when they are held up, so that they delay as few others as
/// possible.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum PutLane {
    WithoutGroup,
    InGroups,
    /// Puts into this group that were held up together with others in a list.
    InGroup(String),
    /// Puts into this group, which another transaction holds up.
    HeldUp(String),
}

impl PutLane {
    /// Returns the first lane of a message.
    pub(crate) fn of(message: &PutMessage) -> Self {
        if message.group.is_some() { Self::InGroups } else { Self::WithoutGroup }
    }

    /// Returns the next lane of a message that was held up in this lane.
    pub(crate) fn after(&self, message: &PutMessage) -> Self {
        match (&message.group, self) {
            (None, _) => Self::WithoutGroup,
            (Some(group), Self::InGroups) => Self::InGroup(group.clone()),
            (Some(group), _) => Self::HeldUp(group.clone()),
        }
    }
}

impl Store {
    pub(crate) fn new(database: Arc<Database>, runtime: Runtime, arrivals: Arc<ArrivalHub>) -> Self {
        let settings = database.settings();
        Self {
            purge: Purge::new(Arc::clone(&database), runtime.clone(), Arc::clone(&arrivals)),
            puts: Combiner::new(runtime.clone(), |message| ROW_BYTES + message.text.len()),
            deletions: Combiner::new(runtime.clone(), |_| ROW_BYTES),
            renewals: Combiner::new(runtime.clone(), |_| ROW_BYTES),
            held: Arc::new(HeldUp::new(settings.max_connections, settings.timeout)),
            releases: Semaphore::new(Semaphore::MAX_PERMITS),
            database,
            runtime,
            scans: Scans::default(),
            arrivals,
        }
    }

    /// Returns the place whose transactions can include changes to this store.
    pub(crate) fn transaction_place(&self) -> TransactionPlace {
        let settings = self.database.settings();
        TransactionPlace::schema(settings.schema.as_str(), settings.description.as_str())
    }

    /// Returns a handle with separate connections. The renewer of leases uses it, and needs few.
    pub(crate) fn with_own_connections(&self) -> Self {
        const RENEWER_CONNECTIONS: usize = 2;
        let database = self
            .database
            .with_own_pool(RENEWER_CONNECTIONS)
            .map_or_else(|_| Arc::clone(&self.database), Arc::new);
        // Messages that are put back use half of the connections, and leave the others to renewals. The
        // handle of the operations makes no renewals.
        let releases = Semaphore::new(RENEWER_CONNECTIONS / 2);
        Self { releases, ..Self::new(database, self.runtime.clone(), Arc::clone(&self.arrivals)) }
    }
}

jobqueue_storage::debug_fields! {
    Store(database)
}
