//! Decides which copy of a child, or of the continuation, runs while several messages of it exist.
//!
//! A send whose answer is lost makes a second message, and so does a continuation that two children send at once. The copy
//! that came first runs; another one *waits*, and is never deleted for not being first: the first may have been dead-lettered
//! by hand, or may be the same message under the name that another handle of the storage gives it. Only the record that the
//! child is done ends a copy. A copy that has waited for about a minute runs as well: twice is allowed, never is not.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ledger::Ledger;
use super::names::is;
use crate::error::Error;
use crate::storage::{MessageId, PutBlob, StoreErrorKind as K};

/// The time that a copy is put back for while another one runs.
const WAIT: Duration = Duration::from_secs(5);
/// From which delivery on it waits no longer. Counted, since clocks of several machines would meet here.
const TAKE_OVER: u32 = 12;

/// The copy that runs.
#[derive(Debug, Serialize, Deserialize)]
struct Claim {
    /// `None` when it was dead-lettered.
    message: Option<String>,
}

/// True if a copy runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// It runs, and no other delivery was given a turn before.
    First,
    /// It runs; another delivery may have been given a turn before.
    Again,
    /// Another copy runs; this one is put back for this time.
    Wait(Duration),
}

impl Ledger<'_> {
    /// Gives the delivery with this number of `message` the turn of `who`, unless another copy has it.
    pub(super) async fn take_turn(
        &self,
        who: &str,
        message: &MessageId,
        delivery: u32,
    ) -> Result<Turn, Error> {
        let blob = self.id.blob(&format!("claim/{who}"))?;
        let own = Claim { message: Some(message.as_str().to_owned()) };
        if self.create(&blob, &own).await? {
            return Ok(Turn::First);
        }
        // Without one, a sweep has just removed it.
        let Some((claim, tag)) = self.read_tagged::<Claim>(&blob).await? else { return Ok(Turn::Wait(WAIT)) };
        if claim.message == own.message {
            return Ok(Turn::Again);
        }
        if claim.message.is_some() && delivery < TAKE_OVER {
            return Ok(Turn::Wait(WAIT));
        }
        let taken = self.write(&blob, &own, PutBlob::if_match(tag)).await?;
        Ok(if taken { Turn::Again } else { Turn::Wait(WAIT) })
    }

    /// Returns whether no other copy has the turn of `who`.
    pub(super) async fn may_end(&self, who: &str, message: &MessageId) -> Result<bool, Error> {
        let claim = self.read::<Claim>(&self.id.blob(&format!("claim/{who}"))?).await?;
        let holder = claim.and_then(|claim| claim.message);
        Ok(holder.is_none_or(|holder| holder == message.as_str()))
    }

    /// Ends the turn of `message`, which goes to the dead letters and comes back as another one.
    pub(super) async fn end_turn(&self, who: &str, message: &MessageId) -> Result<(), Error> {
        let blob = self.id.blob(&format!("claim/{who}"))?;
        let Some((claim, tag)) = self.read_tagged::<Claim>(&blob).await? else { return Ok(()) };
        if claim.message.as_deref() != Some(message.as_str()) {
            return Ok(());
        }
        self.write(&blob, &Claim { message: None }, PutBlob::if_match(tag)).await.map(drop)
    }
}

/// Returns whether a conditional write was refused because somebody else was quicker.
pub(super) fn is_conflict(error: &crate::storage::StoreError) -> bool {
    is(error, K::BlobAlreadyExists) || is(error, K::ConditionNotMet) || is(error, K::BlobNotFound)
}
