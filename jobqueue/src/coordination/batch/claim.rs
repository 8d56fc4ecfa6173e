//! The turn among several messages of one child, or of the continuation.
//!
//! A send whose answer is lost makes a second message. So does a continuation that two children send at once. The
//! first copy delivered runs. Other copies *wait*; none is deleted for not being the first, because the first may
//! have been dead-lettered by hand, or may be the same message under the id that another handle of the storage gives
//! it. Only the record that the child is done ends a copy. A copy that has waited for about a minute runs too:
//! running twice is allowed, never running is not.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ledger::{Ledger, MAX_BYTES};
use crate::error::Error;
use crate::json_blob::{Edit, JsonBlob, Known};
use crate::storage::{MessageId, StoreError, StoreErrorKind as K};

/// The delay of a copy that is put back while another one runs.
const WAIT: Duration = Duration::from_secs(5);
/// The delivery from which a copy waits no longer. A count, because the clocks of several machines may differ.
const TAKE_OVER: u32 = 12;

/// The record of the copy that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Claim {
    /// The copy's message; `None` if it was dead-lettered.
    message: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// The copy runs, and no other delivery has had a turn before.
    First,
    /// The copy runs; another delivery may have had a turn before.
    Again,
    /// Another copy runs; this one is put back for this time.
    Wait(Duration),
}

impl Ledger<'_> {
    /// Gives the turn of `who` to delivery number `delivery` of `message`, unless another copy has it.
    pub(super) async fn take_turn(
        &self,
        who: &str,
        message: &MessageId,
        delivery: u32,
    ) -> Result<Turn, Error> {
        let own = Claim { message: Some(message.as_str().to_owned()) };
        let take = |claim: Option<Claim>| match claim {
            None => Edit::Write(own.clone(), Turn::First),
            Some(claim) if claim == own => Edit::Keep(Turn::Again),
            Some(Claim { message: Some(_) }) if delivery < TAKE_OVER => Edit::Keep(Turn::Wait(WAIT)),
            Some(_) => Edit::Write(own.clone(), Turn::Again),
        };
        match self.claim(who)?.change(Known::Absent, take).await {
            Ok(taken) => Ok(taken.result),
            // Other copies were faster, or a sweep has just removed the claim.
            Err(e) if is_conflict(&e) => Ok(Turn::Wait(WAIT)),
            Err(e) => Err(e.into()),
        }
    }

    fn claim(&self, who: &str) -> Result<JsonBlob<Claim>, Error> {
        let blob = self.id.blob(&format!("claim/{who}"))?;
        Ok(JsonBlob::new(self.storage.blobs(), self.storage.runtime(), blob, MAX_BYTES))
    }

    /// Returns whether no other copy has the turn of `who`.
    pub(super) async fn may_end(&self, who: &str, message: &MessageId) -> Result<bool, Error> {
        let claim = self.claim(who)?.read().await?;
        let holder = claim.and_then(|claim| claim.value.message);
        Ok(holder.is_none_or(|holder| holder == message.as_str()))
    }

    /// Ends the turn of `message`, which is being dead-lettered and would return as another message.
    pub(super) async fn end_turn(&self, who: &str, message: &MessageId) -> Result<(), Error> {
        let end = |claim: Option<Claim>| match claim.and_then(|claim| claim.message) {
            Some(holder) if holder == message.as_str() => Edit::Write(Claim { message: None }, ()),
            _ => Edit::Keep(()),
        };
        self.claim(who)?.change(Known::Nothing, end).await?;
        Ok(())
    }
}

/// Returns whether a conditional write was refused because another writer was faster.
pub(super) fn is_conflict(error: &StoreError) -> bool {
    matches!(error.kind(), K::BlobAlreadyExists | K::ConditionNotMet | K::BlobNotFound)
}
