//! The record of one key, and the conditional writes that change it.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::time::timeout;

use super::PENDING;
use crate::clock::unix_millis;
use crate::error::{Error, ErrorKind};
use crate::group_log::EntryRef;
#[cfg(feature = "sqlite")]
use crate::json_blob::ExclusiveBlobs;
use crate::json_blob::{Edit, JsonBlob, Known, Version, is_raced};
use crate::queue_core::QueueCore;
use crate::runtime::Runtime;
use crate::settings::Metadata;
use crate::storage::{BlobName, ContainerName};
use crate::storage::{StoreError, StoreErrorKind, Tries};
use crate::undelivered::{StoredMessage, UndeliveredRef};
use jobqueue_storage::fast::hex::to_hex;

pub(crate) const CONTAINER: &str = "jobqueue-unique";
/// The maximum size of a record in bytes: an id of 1,024 bytes, all of them escaped, and some hundred bytes more.
const MAX_BYTES: u64 = 16 * 1024;
/// The minimum time for which the record of a send is tried.
const LEAST: Duration = Duration::from_secs(5);

/// The record of a key: its sender, and the end of its window. Times are milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) id: String,
    /// Identifies the sender or canceller that wrote the record: several may use the same id.
    #[serde(default)]
    nonce: String,
    /// True if the message is stored.
    sent: bool,
    /// The time until which the sender may send.
    pending_until: u64,
    until: u64,
    /// The stored message, so that it can be cancelled; `None` if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<UndeliveredRef>,
    /// The job's position in its FIFO group. A cancellation gives it up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) position: Option<EntryRef>,
    /// True if a former sender, which died or got no answer, may have stored a message under this id.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) taken_over: bool,
    /// The child of a batch that wrote the record. Another sender that takes over from it sends under the same id, and not as this child.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    child: Option<String>,
}

impl Record {
    pub(crate) fn pending(id: String, runtime: &Runtime, pending: Duration, window: Duration) -> Self {
        let now = runtime.now();
        let (pending_until, until) = (unix_millis(now + pending), unix_millis(now + window));
        let (sent, taken_over, message, position, child) = (false, false, None, None, None);
        Self { id, nonce: nonce(runtime), sent, pending_until, until, message, position, taken_over, child }
    }

    pub(super) fn of_child(self, child: Option<&str>) -> Self {
        Self { child: child.map(str::to_owned), ..self }
    }

    /// Returns the record of a stored message, which can be cancelled if it is known.
    pub(super) fn into_sent(self, message: Option<&StoredMessage>) -> Self {
        Self { sent: true, message: message.map(UndeliveredRef::from), ..self }
    }

    /// Returns the record with the job's position in its FIFO group.
    pub(crate) fn at(self, position: Option<EntryRef>) -> Self {
        Self { position, ..self }
    }

    /// Returns a record without a message: the key is free.
    pub(super) fn into_void(self) -> Self {
        Self { sent: true, until: 0, message: None, ..self }
    }

    fn is_pending_of(&self, other: &Self) -> bool {
        !self.sent && self.nonce == other.nonce
    }
}

/// Returns a random name for one sender or canceller.
fn nonce(runtime: &Runtime) -> String {
    format!("{:016x}", runtime.random_u64())
}

/// The result of claiming a key.
#[derive(Debug)]
pub(crate) enum Claim {
    /// The caller owns the key and must send under the record's id.
    Owned(Box<Version<Record>>),
    /// Another sender has sent under this id.
    Joined(Joined),
}

/// A job that was sent earlier.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) id: String,
    /// The child of a batch as which it was sent.
    pub(super) child: Option<String>,
}

/// The result of claiming a key in a transaction.
#[cfg(feature = "sqlite")]
#[derive(Debug)]
pub(crate) enum Exclusive {
    /// The caller owns the key and must send under the record's id.
    Owned(Record),
    /// Another sender has sent under this id.
    Joined(String),
    /// Another sender is about to send, and cannot finish before the transaction ends.
    Busy,
}

/// The result of holding a key to cancel its job.
#[derive(Debug)]
pub(super) enum ClaimState {
    /// The job was sent, and the key is held: others wait as they do for a sender.
    Held(Box<Version<Record>>, StoredMessage),
    Nothing,
    /// Another process is sending or cancelling.
    Busy,
    /// The job is a child of a batch, which waits for its end.
    OfBatch,
}

/// The decision about a record that was read.
enum Ownership<T> {
    Mine,
    Other(T),
}

#[derive(Debug)]
pub(crate) struct Records(JsonBlob<Record>);

impl Records {
    pub(crate) fn new(core: &QueueCore, kind: &str, key: &str) -> Result<Self, Error> {
        let mut hash = Sha256::new();
        for part in [kind, key] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let digest = to_hex(&hash.finalize());
        let name = BlobName::new(ContainerName::new(CONTAINER)?, format!("{}/{digest}", core.name))?;
        let blob = JsonBlob::new(core.storage.blobs(), core.runtime(), name, MAX_BYTES);
        // Tells a sweep when the record is obsolete.
        Ok(Self(blob.with_metadata(|record: &Record| {
            let expires = record.until.max(record.pending_until) / 1000 + 1;
            Metadata::new().with("expires", expires.to_string())
        })))
    }

    /// Tries to claim the key; `None` if another sender is about to send.
    pub(crate) async fn claim(&self, mine: Record, now: SystemTime) -> Result<Option<Claim>, Error> {
        let claimed = self.0.change(Known::Absent, claim(&mine, now)).await;
        let claimed = match claimed {
            // A sweep may hold the record for a moment and remove it.
            Err(e) if is_raced(e.kind()) => return Ok(None),
            claimed => claimed.map_err(|e| {
                let retryable = e.is_retryable();
                Error::new(ErrorKind::Rejected, "the message is not stored: claiming its unique key failed")
                    .with_retryable(retryable)
                    .with_source(e)
            })?,
        };
        Ok(match (claimed.result, claimed.version) {
            (Ownership::Mine, Some(version)) => Some(Claim::Owned(Box::new(version))),
            (Ownership::Other(joined), _) => joined.map(Claim::Joined),
            (Ownership::Mine, None) => None,
        })
    }

    /// Claims the key in a transaction of the caller's. The record that it returns is pending until
    /// [`write_exclusively`](Self::write_exclusively) replaces it.
    #[cfg(feature = "sqlite")]
    pub(super) fn claim_exclusively(
        &self,
        blobs: &dyn ExclusiveBlobs,
        mine: &Record,
        now: SystemTime,
    ) -> Result<Exclusive, StoreError> {
        let edit = claim(mine, now);
        self.0.change_exclusively(blobs, |found| match edit(found) {
            Edit::Write(record, _) => Edit::Write(record.clone(), Exclusive::Owned(record)),
            Edit::Keep(Ownership::Other(Some(joined))) => Edit::Keep(Exclusive::Joined(joined.id)),
            Edit::Keep(_) => Edit::Keep(Exclusive::Busy),
        })
    }

    /// Writes the record of a key that is claimed in the same transaction.
    #[cfg(feature = "sqlite")]
    pub(super) fn write_exclusively(
        &self,
        blobs: &dyn ExclusiveBlobs,
        record: Record,
    ) -> Result<(), StoreError> {
        self.0.change_exclusively(blobs, |_| Edit::Write(record, ()))
    }

    /// Holds a key under which a message was sent, that of the job `id` if one is given, for at most `pending`.
    pub(crate) async fn hold(
        &self,
        id: Option<&str>,
        now: SystemTime,
        pending: Duration,
    ) -> Result<ClaimState, Error> {
        let (this, until, nonce) = (unix_millis(now), unix_millis(now + pending), nonce(self.0.runtime()));
        let hold = |found: Option<Record>| {
            let Some(found) = found.filter(|found| id.is_none_or(|id| found.id == id)) else {
                return Edit::Keep(Ownership::Other(ClaimState::Nothing));
            };
            match (found.sent, this < found.until, this < found.pending_until) {
                (false, ..) if found.nonce == nonce => Edit::Keep(Ownership::Mine),
                (false, _, true) => Edit::Keep(Ownership::Other(ClaimState::Busy)),
                (_, true, _) if found.child.is_some() => Edit::Keep(Ownership::Other(ClaimState::OfBatch)),
                // Sent, or held by a canceller that died or got no answer.
                (_, true, _) if found.message.is_some() => {
                    let held = Record { sent: false, nonce: nonce.clone(), pending_until: until, ..found };
                    Edit::Write(held, Ownership::Mine)
                }
                _ => Edit::Keep(Ownership::Other(ClaimState::Nothing)),
            }
        };
        let held = match self.0.change(Known::Nothing, hold).await {
            Err(e) if is_raced(e.kind()) => return Ok(ClaimState::Busy),
            held => held.map_err(not_cancelled)?,
        };
        let version = match (held.result, held.version) {
            (Ownership::Mine, Some(version)) => version,
            (Ownership::Other(state), _) => return Ok(state),
            (Ownership::Mine, None) => return Ok(ClaimState::Nothing),
        };
        let message = version.value.message.as_ref().map(UndeliveredRef::stored);
        Ok(message.map_or(ClaimState::Nothing, |message| ClaimState::Held(Box::new(version), message)))
    }

    /// Records the result as `outcome` makes it from the record. Tries while the storage cannot serve it, until the hold on the key ends:
    /// if the result is not recorded by then, the next sender sends under the same id. A send that took longer than the hold is recorded
    /// too, if no other sender has taken the key over: it is tried for some seconds.
    pub(crate) async fn finish(&self, mine: Version<Record>, outcome: impl Fn(Record) -> Record) {
        let left = mine.value.pending_until.saturating_sub(unix_millis(self.0.runtime().now()));
        // A clock that is set back must not prolong it.
        let left = Duration::from_millis(left).clamp(LEAST, PENDING);
        let own = mine.value.clone();
        let mut mine = Some(mine);
        let record = || self.record(&own, mine.take().map_or(Known::Nothing, Known::Version), &outcome);
        let tries = Tries::persistent(self.0.runtime());
        match timeout(left, tries.run(record)).await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => {
                crate::log::debug!("the record of the unique job was changed by another process")
            }
            failed => {
                let error = failed.ok().and_then(Result::err);
                let error = error.map_or_else(|| "no answer in time".to_owned(), |error| error.to_string());
                crate::log::warn!(record = %self.0.name(), %error, "a unique send or its cancellation could not be recorded; the next send of the key has the same id");
            }
        }
    }

    /// Frees the key, because nothing was stored. If this fails, the next sender waits until the hold on the key ends.
    pub(super) async fn give_up(&self, mine: Version<Record>) {
        let own = mine.value.clone();
        if let Err(error) = self.record(&own, Known::Version(mine), &Record::into_void).await {
            crate::log::debug!(record = %self.0.name(), %error, "the key of a unique job that was not sent was not freed");
        }
    }

    /// Changes the record `own` if it still stands. Returns whether it does.
    async fn record(
        &self,
        own: &Record,
        known: Known<Record>,
        outcome: &impl Fn(Record) -> Record,
    ) -> Result<bool, StoreError> {
        let finish = |found: Option<Record>| match found {
            Some(found) if found.is_pending_of(own) => Edit::Write(outcome(found), true),
            _ => Edit::Keep(false),
        };
        Ok(self.0.change(known, finish).await?.result)
    }
}

fn claim(
    mine: &Record,
    now: SystemTime,
) -> impl Fn(Option<Record>) -> Edit<Record, Ownership<Option<Joined>>> + use<'_> {
    let now = unix_millis(now);
    move |found| {
        let Some(found) = found else { return Edit::Write(mine.clone(), Ownership::Mine) };
        match (found.sent, now < found.until, now < found.pending_until) {
            // Our own write succeeded, but its answer was lost.
            (false, ..) if found.nonce == mine.nonce => Edit::Keep(Ownership::Mine),
            (true, true, _) => {
                let joined = Joined { id: found.id, child: found.child };
                Edit::Keep(Ownership::Other(Some(joined)))
            }
            (false, _, true) => Edit::Keep(Ownership::Other(None)),
            // Its sender died and may have sent, so the id stays for its window. A child of a batch has the id of its place: no other
            // belongs to the batch.
            (false, true, false) => {
                let id = if mine.child.is_some() { mine.id.clone() } else { found.id };
                Edit::Write(Record { id, taken_over: true, ..mine.clone() }, Ownership::Mine)
            }
            (_, false, _) => Edit::Write(mine.clone(), Ownership::Mine),
        }
    }
}

/// Returns the error of a cancellation that could not begin.
fn not_cancelled(error: StoreError) -> Error {
    if error.kind() == StoreErrorKind::Corrupt {
        return Error::new(ErrorKind::Undecodable, "the record of the unique job is damaged; delete it")
            .with_source(error);
    }
    let retryable = error.is_retryable() || error.is_ambiguous();
    // A key that is held sends again when the hold ends.
    let kind = if error.is_ambiguous() { ErrorKind::Unknown } else { ErrorKind::Storage };
    let text = "the job is not cancelled: its unique key could not be read or locked; try again";
    Error::new(kind, text).with_retryable(retryable).with_source(error)
}
