//! The requests that take, keep and end the turn of a copy. Where a log keeps the order of the job, the log
//! gives the turns, and there is no claim.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::claim::{Claim, FIRST_COPY_DELAY, Turn};
use super::ledger::{Ledger, MAX_BYTES};
use crate::clock::WITHOUT_END;
use crate::delivery::{HookContext, position_of};
use crate::error::Error;
use crate::json_blob::{JsonBlob, Known, is_raced};
use crate::storage::{BlobStore, MessageId};

/// The interval between two heartbeats: a third of the shortest time in which a copy waits [four
/// times](super::claim).
const HEARTBEAT: Duration = Duration::from_secs(15);

/// The turn of a delivery that has made a claim, or makes it with its first heartbeat.
struct ClaimedTurn {
    document: JsonBlob<Claim>,
    message: MessageId,
    is_claimed: AtomicBool,
}

impl ClaimedTurn {
    async fn confirm(self: Arc<Self>) -> Result<Option<Instant>, Error> {
        let is_claimed = self.is_claimed.load(Ordering::Relaxed);
        let heartbeat = |found| Claim::heartbeat(found, &self.message, is_claimed);
        let known = if is_claimed { Known::Nothing } else { Known::Absent };
        let has_turn = self.document.change(known, heartbeat).await?.result;
        self.is_claimed.store(true, Ordering::Relaxed);
        // A delivery without heartbeats continues: most children have no other copy, and would be restarted
        // for nothing.
        Ok(has_turn.then(|| Instant::now() + WITHOUT_END))
    }
}

impl Ledger<'_> {
    /// Gives the turn of `place` to this delivery until its lease ends, unless another copy has the turn. The
    /// delivery loses its lease if another copy takes the turn over.
    pub(super) async fn turn_of(
        &self,
        place: &str,
        delivery: HookContext<'_>,
        is_copy: bool,
    ) -> Result<Turn, Error> {
        if position_of(delivery.leased_job).is_some() {
            return Ok(Turn::Again);
        }
        let take = |found| Claim::take(found, delivery.message, delivery.job.dequeue_count, is_copy);
        let turn = match self.claim(place, self.storage.blobs())?.change(Known::Absent, take).await {
            Ok(taken) => taken.result,
            // Other copies were faster, or a sweep has just removed the claim.
            Err(e) if is_raced(e.kind()) => Turn::Wait(FIRST_COPY_DELAY),
            Err(e) => return Err(e.into()),
        };
        if !matches!(turn, Turn::Wait(_)) {
            self.keep_turn(place, delivery, true)?;
        }
        Ok(turn)
    }

    /// Sends heartbeats for the turn of `place` until the lease of this delivery ends. The first heartbeat
    /// makes the claim unless `is_claimed`. The delivery loses its lease if another copy has the turn.
    pub(super) fn keep_turn(
        &self,
        place: &str,
        delivery: HookContext<'_>,
        is_claimed: bool,
    ) -> Result<(), Error> {
        if position_of(delivery.leased_job).is_some() {
            return Ok(());
        }
        let document = self.claim(place, &self.storage.detached_blobs())?;
        let (message, is_claimed) = (delivery.message.clone(), is_claimed.into());
        let turn = Arc::new(ClaimedTurn { document, message, is_claimed });
        let (until, confirm) = (Instant::now() + WITHOUT_END, move || Arc::clone(&turn).confirm());
        delivery.leased_job.keep_turn(HEARTBEAT, HEARTBEAT, until, confirm);
        Ok(())
    }

    fn claim(&self, place: &str, blobs: &Arc<dyn BlobStore>) -> Result<JsonBlob<Claim>, Error> {
        let blob = self.id.blob(&format!("claim/{place}"))?;
        Ok(JsonBlob::new(blobs, self.storage.runtime(), blob, MAX_BYTES))
    }

    /// Returns whether no other copy has the turn of `place`.
    pub(super) async fn may_end(&self, place: &str, delivery: HookContext<'_>) -> Result<bool, Error> {
        if let Some(position) = position_of(delivery.leased_job) {
            return delivery.leased_job.core.groups.may_end(position).await;
        }
        let claim = self.claim(place, self.storage.blobs())?.read().await?;
        Ok(claim.is_none_or(|claim| claim.value.is_free_for(delivery.message, false)))
    }

    /// Ends the turn of a message that is being dead-lettered: a redrive would put the job back as another
    /// message.
    pub(super) async fn end_turn(&self, place: &str, delivery: HookContext<'_>) -> Result<(), Error> {
        if position_of(delivery.leased_job).is_some() {
            return Ok(());
        }
        let end = |found| Claim::end(found, delivery.message);
        self.claim(place, self.storage.blobs())?.change(Known::Nothing, end).await?;
        Ok(())
    }
}
