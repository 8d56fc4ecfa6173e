//! The turn among several messages of one child, or of the continuation.
//!
//! A send whose answer is lost makes a second message. So does a continuation that two children send at once. The
//! first copy delivered runs. Other copies *wait*; none is deleted for not being the first, because the first may
//! have been dead-lettered by hand, or may be the same message under the id that another handle of the storage gives
//! it. Only the record that the child is done ends a copy.
//!
//! A copy that is put back counts that in the claim, and the one that runs strikes the counts out at intervals. A copy
//! that was put back four times without such a sign of life, which takes one to four minutes, takes the turn over.
//!
//! The first delivery of a child's first message makes no claim before its first sign of life: most children have ended by then. A message
//! that may be the second says so in a header. If it finds no claim, it waits for the first message as for one that runs, and takes the
//! turn over in the same time. A first message that is delivered only then loses its lease at its first sign of life. Children whose dead
//! letters count as ended have no such header, and all of their messages make their claims at once: only the one that has the turn can fail
//! the child.
//!
//! The messages of a job in order make no claims where a log keeps the order: the log gives the turn to one of them, and takes it away. Two
//! records of one turn would hold each other up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::ledger::{Ledger, MAX_BYTES};
use crate::delivery::{HookContext, position_of};
use crate::error::Error;
use crate::json_blob::{Edit, JsonBlob, Known, is_raced};
use crate::storage::{BlobStore, MessageId};

/// The delay of a copy that is put back for the first time while another one runs.
const WAIT: Duration = Duration::from_secs(5);
/// The delivery from which this delay no longer grows.
const LONGEST_WAIT: u32 = 12;
/// The number of waits without a sign of life after which a copy takes the turn over. A count, because the clocks of several machines
/// may differ.
const PATIENCE: u32 = 4;
/// The interval between two signs of life: a third of the shortest time in which a copy has waited that often.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// The time for which a copy runs without a sign of life: longer than any outage. Most children have no other copy, and would begin anew
/// for nothing.
const UNCONFIRMED: Duration = Duration::from_secs(365 * 86_400);

/// The holder of a claim that a copy has made: the first message of the child, which may run without one.
const FIRST_MESSAGE: &str = "";

/// The record of the copy that runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Claim {
    /// The copy's message; `None` if it was dead-lettered.
    message: Option<String>,
    /// The number of times that each other copy was put back since the last sign of life.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    waits: BTreeMap<String, u32>,
}

impl Claim {
    fn of(message: &str) -> Self {
        Self { message: Some(message.to_owned()), ..Self::default() }
    }

    /// Returns whether `message` may take the turn at once.
    fn is_free_for(&self, message: &MessageId, is_copy: bool) -> bool {
        match self.message.as_deref() {
            Some(FIRST_MESSAGE) => !is_copy,
            holder => holder.is_none_or(|holder| holder == message.as_str()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// The copy runs, and no other delivery has made a claim before.
    First,
    /// The copy runs; another delivery may have had a turn before.
    Again,
    /// Another copy runs; this one is put back for this time.
    Wait(Duration),
}

/// The turn of a delivery that has made a claim, or makes it at its first sign of life.
struct ClaimedTurn {
    document: JsonBlob<Claim>,
    message: MessageId,
    is_claimed: AtomicBool,
}

impl ClaimedTurn {
    async fn confirm(self: Arc<Self>) -> Result<Option<Instant>, Error> {
        let (own, is_claimed) = (Claim::of(self.message.as_str()), self.is_claimed.load(Ordering::Relaxed));
        let sign_of_life = |found: Option<Claim>| match found {
            None if !is_claimed => Edit::Write(own.clone(), true),
            Some(found) if found.message.is_some() && found != own => {
                match found.is_free_for(&self.message, false) {
                    true => Edit::Write(own.clone(), true),
                    false => Edit::Keep(false),
                }
            }
            // The child was dead-lettered by hand, or the batch swept.
            _ => Edit::Keep(true),
        };
        let known = if is_claimed { Known::Nothing } else { Known::Absent };
        let has_turn = self.document.change(known, sign_of_life).await?.result;
        self.is_claimed.store(true, Ordering::Relaxed);
        Ok(has_turn.then(|| Instant::now() + UNCONFIRMED))
    }
}

impl Ledger<'_> {
    /// Gives the turn of `who` to this delivery until its lease ends, unless another copy has it. The delivery loses its lease if
    /// another copy takes the turn over.
    pub(super) async fn turn_of(
        &self,
        who: &str,
        delivery: HookContext<'_>,
        is_copy: bool,
    ) -> Result<Turn, Error> {
        if position_of(delivery.leased_job).is_some() {
            return Ok(Turn::Again);
        }
        let turn = self.take_turn(who, delivery.message, delivery.job.dequeue_count, is_copy).await?;
        if !matches!(turn, Turn::Wait(_)) {
            self.keep_turn(who, delivery, true)?;
        }
        Ok(turn)
    }

    /// Renews the claim of the turn of `who` until the lease of this delivery ends, or makes it unless it `is_claimed`. The delivery loses
    /// its lease if another copy has the turn.
    pub(super) fn keep_turn(
        &self,
        who: &str,
        delivery: HookContext<'_>,
        is_claimed: bool,
    ) -> Result<(), Error> {
        if position_of(delivery.leased_job).is_some() {
            return Ok(());
        }
        let document = self.claim(who, &self.storage.blobs_apart())?;
        let (message, is_claimed) = (delivery.message.clone(), is_claimed.into());
        let turn = Arc::new(ClaimedTurn { document, message, is_claimed });
        let (until, confirm) = (Instant::now() + UNCONFIRMED, move || Arc::clone(&turn).confirm());
        delivery.leased_job.keep_turn(HEARTBEAT, HEARTBEAT, until, confirm);
        Ok(())
    }

    /// Gives the turn of `who` to delivery number `delivery` of `message`, unless another copy has it.
    pub(super) async fn take_turn(
        &self,
        who: &str,
        message: &MessageId,
        delivery: u32,
        is_copy: bool,
    ) -> Result<Turn, Error> {
        let own = Claim::of(message.as_str());
        let take = |found: Option<Claim>| {
            let turn = if found.is_none() { Turn::First } else { Turn::Again };
            let unclaimed = || if is_copy { Claim::of(FIRST_MESSAGE) } else { Claim::default() };
            let mut claim = found.unwrap_or_else(unclaimed);
            if claim == own {
                return Edit::Keep(Turn::Again);
            }
            if claim.is_free_for(message, is_copy) {
                return Edit::Write(own.clone(), turn);
            }
            let waits = claim.waits.entry(message.as_str().to_owned()).or_default();
            if *waits >= PATIENCE {
                return Edit::Write(own.clone(), Turn::Again);
            }
            *waits += 1;
            Edit::Write(claim, Turn::Wait(WAIT * delivery.min(LONGEST_WAIT)))
        };
        match self.claim(who, self.storage.blobs())?.change(Known::Absent, take).await {
            Ok(taken) => Ok(taken.result),
            // Other copies were faster, or a sweep has just removed the claim.
            Err(e) if is_raced(e.kind()) => Ok(Turn::Wait(WAIT)),
            Err(e) => Err(e.into()),
        }
    }

    fn claim(&self, who: &str, blobs: &Arc<dyn BlobStore>) -> Result<JsonBlob<Claim>, Error> {
        let blob = self.id.blob(&format!("claim/{who}"))?;
        Ok(JsonBlob::new(blobs, self.storage.runtime(), blob, MAX_BYTES))
    }

    /// Returns whether no other copy has the turn of `who`.
    pub(super) async fn may_end(&self, who: &str, delivery: HookContext<'_>) -> Result<bool, Error> {
        if let Some(position) = position_of(delivery.leased_job) {
            return delivery.leased_job.core.groups.may_end(position).await;
        }
        let claim = self.claim(who, self.storage.blobs())?.read().await?;
        Ok(claim.is_none_or(|claim| claim.value.is_free_for(delivery.message, false)))
    }

    /// Ends the turn of a message that is being dead-lettered and would return as another message.
    pub(super) async fn end_turn(&self, who: &str, delivery: HookContext<'_>) -> Result<(), Error> {
        if position_of(delivery.leased_job).is_some() {
            return Ok(());
        }
        let end = |claim: Option<Claim>| match claim.and_then(|claim| claim.message) {
            Some(holder) if holder == delivery.message.as_str() => Edit::Write(Claim::default(), ()),
            _ => Edit::Keep(()),
        };
        self.claim(who, self.storage.blobs())?.change(Known::Nothing, end).await?;
        Ok(())
    }
}
