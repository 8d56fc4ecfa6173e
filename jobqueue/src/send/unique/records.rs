//! The requests that read and change the records of keys.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::try_join_all;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout};

use super::record::{CancellerClaim, HOLD_PERIOD, KeyClaim, Ownership, UniqueRecord, nonce};
use crate::clock::unix_millis;
use crate::error::{Error, ErrorKind};
use crate::json_blob::{JsonBlob, Known, is_raced};
use crate::queue_core::QueueCore;
use crate::runtime::Runtime;
use crate::send::sent::Sent;
use crate::settings::Metadata;
use crate::storage::{
    BlobName, BlobProperties, ContainerName, ETag, EXPIRES, StoreError, StoreErrorKind, Tries, list_all,
    needed_at_most_until,
};
use crate::undelivered::{SKEW, UndeliveredRef};
use jobqueue_storage::fast::hex::to_hex;

pub(crate) const CONTAINER: &str = "jobqueue-unique";
/// The maximum size of a record in bytes: an id and a source of 1,024 bytes each that are all escaped, with
/// six bytes for each, and some hundred bytes more.
const MAX_RECORD_BYTES: u64 = 16 * 1024;
/// The number of records that are read and freed at the same time when a queue is cleared.
const CONCURRENT_FREES: usize = 16;
/// The number of times that a request of a clear is sent again.
const RESENDS: u32 = 4;
/// The minimum time for which recording the outcome of a send is tried.
const MIN_RECORD_TIME: Duration = Duration::from_secs(5);

/// The result of claiming a key.
#[derive(Debug)]
pub(super) enum SenderClaim {
    /// The caller holds the key, and must send under the id and the source of the record.
    Mine(Box<KeyClaim>),
    /// Another sender has sent the job with this id.
    Joined(String),
    /// Another process is about to send or to cancel, with this record if it was read.
    Busy(Option<Box<UniqueRecord>>),
}

/// The record of a key, in its blob.
#[derive(Debug)]
pub(crate) struct UniqueRecordBlob(JsonBlob<UniqueRecord>);

impl UniqueRecordBlob {
    pub(crate) fn new(core: &QueueCore, kind: &str, key: &str) -> Result<Self, Error> {
        let mut hash = Sha256::new();
        for part in [kind, key] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let digest = to_hex(&hash.finalize());
        let name = BlobName::new(ContainerName::new(CONTAINER)?, format!("{}/{digest}", core.name))?;
        Ok(Self::named(core, name))
    }

    fn named(core: &QueueCore, name: BlobName) -> Self {
        let blob = JsonBlob::new(core.storage.blobs(), core.runtime(), name, MAX_RECORD_BYTES);
        Self(blob.with_metadata(|record: &UniqueRecord| {
            let expires = record.until.max(record.pending_until) / 1000 + 1;
            Metadata::new().with(EXPIRES, expires.to_string())
        }))
    }

    /// Tries to claim the key with the record `mine`, unless a job was sent. `is_abandoned` decides whether
    /// the owner of a pending record counts as dead.
    pub(super) async fn claim(
        &self,
        mine: UniqueRecord,
        now: SystemTime,
        is_abandoned: impl Fn(&UniqueRecord) -> bool,
    ) -> Result<SenderClaim, Error> {
        let begun = Instant::now();
        let claim = |found| UniqueRecord::claim(found, &mine, unix_millis(now), &is_abandoned);
        let claimed = match self.0.change(Known::Absent, claim).await {
            // A sweep may lock the record for a moment and remove it.
            Err(e) if is_raced(e.kind()) => return Ok(SenderClaim::Busy(None)),
            claimed => claimed.map_err(|e| {
                let retryable = e.is_retryable();
                Error::new(ErrorKind::Rejected, "the message is not stored: claiming its unique key failed")
                    .with_retryable(retryable)
                    .with_source(e)
            })?,
        };
        Ok(match (claimed.result, claimed.version) {
            (Ownership::Mine, Some(record)) if claimed.is_latest => {
                SenderClaim::Mine(Box::new(KeyClaim::new(record, begun)))
            }
            (Ownership::Other(Some(joined)), _) => SenderClaim::Joined(joined),
            // The claim was taken over before the answer to its write was found.
            (Ownership::Other(None) | Ownership::Mine, found) => {
                SenderClaim::Busy(found.map(|found| Box::new(found.value)))
            }
        })
    }

    /// Renews a hold for its full time. Returns false if another process has taken the key over.
    pub(super) async fn renew(&self, claim: &mut KeyClaim) -> Result<bool, StoreError> {
        let begun = Instant::now();
        let pending_until = unix_millis(self.0.runtime().now() + HOLD_PERIOD);
        let own = claim.record.value.clone();
        let renew =
            |found| UniqueRecord::finish(found, &own, |record| record.with_pending_until(pending_until));
        let renewed = self.0.change(Known::Version(claim.record.clone()), renew).await?;
        let is_own = renewed.result && renewed.is_latest;
        let Some(record) = renewed.version.filter(|_| is_own) else { return Ok(false) };
        *claim = KeyClaim::new(record, begun);
        Ok(true)
    }

    /// Tries to claim a key under which a message was sent, to cancel it. If `sent` is given, claims only the
    /// key of that job. `is_abandoned` decides whether the owner of a pending record counts as dead.
    pub(super) async fn claim_to_cancel(
        &self,
        sent: Option<&Sent>,
        now: SystemTime,
        is_abandoned: impl Fn(&UniqueRecord) -> bool,
    ) -> Result<CancellerClaim, Error> {
        let (begun, nonce) = (Instant::now(), nonce(self.0.runtime()));
        let claim = |found| UniqueRecord::claim_to_cancel(found, sent, &nonce, now, &is_abandoned);
        let held = match self.0.change(Known::Nothing, claim).await {
            Err(e) if is_raced(e.kind()) => return Ok(CancellerClaim::Busy(None)),
            held => held.map_err(not_cancelled)?,
        };
        let claim = match (held.result, held.version) {
            (Ownership::Mine, Some(record)) if held.is_latest => KeyClaim::new(record, begun),
            // The record may have changed since, even to another job: the caller reads it again.
            (Ownership::Other(CancellerClaim::Busy(_)) | Ownership::Mine, found) => {
                return Ok(CancellerClaim::Busy(found.map(|found| Box::new(found.value))));
            }
            (Ownership::Other(state), _) => return Ok(state),
        };
        let message = claim.record.value.message.as_ref().map(UndeliveredRef::stored);
        Ok(message.map_or(CancellerClaim::Nothing, |message| CancellerClaim::Held(Box::new(claim), message)))
    }

    /// Records the outcome of a send or a cancellation: writes the record that `outcome` returns. Retries
    /// while the storage cannot serve the request, until the hold on the key ends: if the outcome is not
    /// recorded by then, the next sender sends under the same id. Even if a send took almost all of the hold,
    /// recording is tried for some seconds, unless another sender has taken the key over. Returns false if
    /// another process has changed the record, and `None` if the outcome could not be recorded.
    pub(super) async fn finish(
        &self,
        claim: KeyClaim,
        outcome: impl Fn(UniqueRecord) -> UniqueRecord,
    ) -> Option<bool> {
        let left = claim.left().max(MIN_RECORD_TIME);
        let own = claim.record.value.clone();
        let mut mine = Some(claim.record);
        let record = || self.record(&own, mine.take().map_or(Known::Nothing, Known::Version), &outcome);
        let tries = Tries::persistent(self.0.runtime());
        match timeout(left, tries.run(record)).await {
            Ok(Ok(is_recorded)) => Some(is_recorded),
            failed => {
                let error = failed.ok().and_then(Result::err);
                let error = error.map_or_else(|| "no answer in time".to_owned(), |error| error.to_string());
                crate::log::warn!(record = %self.0.name(), %error, "a unique send or its cancellation could not be recorded; the next send of the key has the same id");
                None
            }
        }
    }

    /// Frees the key, because nothing was stored. If this fails, the next sender waits until the hold on the
    /// key ends.
    pub(super) async fn give_up(&self, claim: KeyClaim) {
        let own = claim.record.value.clone();
        if let Err(error) = self.record(&own, Known::Version(claim.record), &UniqueRecord::into_free).await {
            crate::log::debug!(record = %self.0.name(), %error, "the key of a unique job that was not sent was not freed");
        }
    }

    /// Finishes the record `own` if the key still belongs to its owner. Returns whether it does.
    async fn record(
        &self,
        own: &UniqueRecord,
        known: Known<UniqueRecord>,
        outcome: &impl Fn(UniqueRecord) -> UniqueRecord,
    ) -> Result<bool, StoreError> {
        let finish = |found| UniqueRecord::finish(found, own, outcome);
        Ok(self.0.change(known, finish).await?.result)
    }
}

/// The records of a queue that existed before its messages were deleted, with their tags.
pub(in crate::send) struct SentRecords(Vec<(UniqueRecordBlob, ETag)>);

impl SentRecords {
    /// Lists the records that have not expired. They are read again when the messages are gone: a send since
    /// then has changed the tag of its record.
    pub(in crate::send) async fn of(core: &QueueCore) -> Result<Self, Error> {
        let (container, prefix) = (ContainerName::new(CONTAINER)?, format!("{}/", core.name));
        let listed =
            tries(core.runtime()).run(|| list_all(&**core.storage.blobs(), &container, &prefix)).await?;
        // By the clock of a sender that is behind, a window lasts for longer.
        let now = core.now().checked_sub(SKEW).unwrap_or(UNIX_EPOCH);
        let is_needed = |found: &BlobProperties| needed_at_most_until(found).is_none_or(|end| now <= end);
        let present = listed.blobs.into_iter().filter(|(_, found)| is_needed(found));
        Ok(Self(present.map(|(name, found)| (UniqueRecordBlob::named(core, name), found.etag)).collect()))
    }

    /// Frees the keys of the jobs that were sent. A record that has changed since it was listed stays as it
    /// is.
    pub(in crate::send) async fn free(self, now: SystemTime) -> Result<(), Error> {
        for records in self.0.chunks(CONCURRENT_FREES) {
            try_join_all(records.iter().map(|(record, tag)| free(record, tag, now))).await?;
        }
        Ok(())
    }
}

async fn free(record_blob: &UniqueRecordBlob, tag: &ETag, now: SystemTime) -> Result<(), StoreError> {
    let found = match tries(record_blob.0.runtime()).run(|| record_blob.0.read()).await {
        // A damaged record counts as missing.
        Err(e) if e.kind() == StoreErrorKind::Corrupt => None,
        found => found?,
    };
    let Some(read) = found.filter(|read| read.tag() == tag && read.value.may_be_joined(now)) else {
        return Ok(());
    };
    let change = || {
        let free = |found| UniqueRecord::freed(found, &read.value);
        record_blob.0.change(Known::Version(read.clone()), free)
    };
    tries(record_blob.0.runtime()).run(change).await.map(drop)
}

fn tries(runtime: &Runtime) -> Tries {
    Tries::brief(runtime, RESENDS, RESENDS)
}

/// Returns the error of a cancellation that could not begin.
fn not_cancelled(error: StoreError) -> Error {
    if error.kind() == StoreErrorKind::Corrupt {
        return Error::new(ErrorKind::Undecodable, "the record of the unique job is damaged; delete it")
            .with_source(error);
    }
    let retryable = error.is_retryable() || error.is_ambiguous();
    // The claim may have been applied: then the next sender sends the job again once the hold ends.
    let kind = if error.is_ambiguous() { ErrorKind::Unknown } else { ErrorKind::Storage };
    let text = "the job is not cancelled: its unique key could not be read or locked; try again";
    Error::new(kind, text).with_retryable(retryable).with_source(error)
}
