//! Renews leases. Renewals of a queue that are due at about the same time share a statement and its commit.
//! The leases of all jobs of a process, which may have begun at the same moment, are renewed over two
//! connections.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_postgres::types::Type;

use super::update::Update;
use crate::database::{Call, Database};
use crate::receipt;
use crate::store::{Renewal, Store, WaitingRenewal};
use crate::time::to_instant;
use jobqueue_storage::{Operation, QueueName, StoreError, Updated};

/// Renews the leases of messages by the rules of [an update](super::update) that skips rows locked by other
/// transactions. `OFFSET` keeps the planner from a join, as in [the queries about refusals](super::refusal).
/// Of two renewals under the same receipt, the first succeeds.
const RENEW: &str = "WITH held AS MATERIALIZED (
        SELECT m.id, m.visible_at, w.visibility, w.new_receipt
        FROM unnest($2::bigint[], $3::bytea[], $4::boolean[], $5::bigint[], $6::bytea[]) AS w (id, receipt, late, visibility, new_receipt),
            LATERAL (SELECT id, visible_at FROM jobqueue.message
                WHERE id = w.id AND receipt = w.receipt AND queue + 0 = (SELECT id FROM jobqueue.queue WHERE name = $1)
                    AND (expires_at IS NULL OR expires_at > jobqueue.now() AND expires_at >= jobqueue.now() + w.visibility)
                    AND (w.late OR lease = 0 OR visible_at > jobqueue.now())
                OFFSET 0 FOR NO KEY UPDATE SKIP LOCKED) m
    ) UPDATE jobqueue.message m
        SET (visible_at, receipt, lease) =
            (SELECT jobqueue.writing() + h.visibility, h.new_receipt, 1 FROM held h WHERE h.id = m.id LIMIT 1)
        WHERE m.id = ANY (ARRAY(SELECT id FROM held))
        RETURNING m.receipt, m.visible_at, m.visible_at < (SELECT h.visible_at FROM held h WHERE h.id = m.id LIMIT 1)";

/// Renews a lease together with others. Returns `None` if the receipt was refused or another transaction has
/// locked the message.
pub(super) async fn renew(
    store: &Store,
    queue: &QueueName,
    update: &Update<'_>,
) -> Result<Option<(Updated, bool)>, StoreError> {
    let (caller, _waits) = oneshot::channel();
    let (database, name) = (Arc::clone(&store.database), queue.clone());
    let run = move |waiting| renew_together(Arc::clone(&database), name.clone(), waiting);
    let (call, end) =
        (Call::new(Operation::Update, queue), Instant::now() + store.database.settings().timeout);
    let Update { offered, visibility, ref receipt, .. } = *update;
    let renewal = Renewal { offered, visibility, receipt: receipt.clone() };
    // Callers with leases of equal length give up at about the same time. Whole seconds are compared, because
    // the lease of a message near the end of its life is cut to the millisecond.
    let length = visibility / 1_000;
    store.renewals.submit(call, &(queue.clone(), length), (renewal, caller), end, None, run).await
}

/// Runs a statement for renewals, and gives it up once all of their callers have given up: a later renewal
/// would store receipts that no caller knows.
async fn renew_together(
    database: Arc<Database>,
    queue: QueueName,
    waiting: Vec<WaitingRenewal>,
) -> Vec<Result<Option<(Updated, bool)>, StoreError>> {
    let (renewals, mut callers): (Vec<_>, Vec<_>) = waiting.into_iter().unzip();
    let given_up = async {
        for caller in &mut callers {
            caller.closed().await;
        }
    };
    tokio::select! {
        biased;
        renewed = renew_all(&database, &queue, &renewals) => match renewed {
            Ok(mut renewed) => renewals.iter().map(|renewal| Ok(renewed.remove(&renewal.receipt))).collect(),
            Err(error) => error.for_each(renewals.len()).map(Err).collect(),
        },
        () = given_up => Vec::new(),
    }
}

/// Returns the renewals that succeeded, by their new receipts.
async fn renew_all(
    database: &Database,
    queue: &QueueName,
    renewals: &[Renewal],
) -> Result<HashMap<Vec<u8>, (Updated, bool)>, StoreError> {
    let call = Call::new(Operation::Update, queue);
    let ids: Vec<i64> = renewals.iter().map(|renewal| renewal.offered.presented.row).collect();
    let former: Vec<&[u8]> = renewals.iter().map(|renewal| renewal.offered.presented.bytes()).collect();
    let late: Vec<bool> = renewals.iter().map(|renewal| renewal.offered.accepts_expired()).collect();
    let visibilities: Vec<i64> = renewals.iter().map(|renewal| renewal.visibility).collect();
    let receipts: Vec<&[u8]> = renewals.iter().map(|renewal| &renewal.receipt[..]).collect();
    let values = [
        (&queue.as_str() as _, Type::TEXT),
        (&ids as _, Type::INT8_ARRAY),
        (&former as _, Type::BYTEA_ARRAY),
        (&late as _, Type::BOOL_ARRAY),
        (&visibilities as _, Type::INT8_ARRAY),
        (&receipts as _, Type::BYTEA_ARRAY),
    ];
    let mut renewed = HashMap::with_capacity(renewals.len());
    for row in database.query(call, RENEW, &values).await? {
        let receipt: Vec<u8> = call.get(&row, 0)?;
        let updated = Updated::new(receipt::expose(&receipt), to_instant(call.get(&row, 1)?));
        renewed.insert(receipt, (updated, call.get(&row, 2)?));
    }
    Ok(renewed)
}
