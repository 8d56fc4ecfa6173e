//! The requests that read and change the records of keys.

use std::time::{Duration, SystemTime};

use futures_util::future::try_join_all;
use sha2::{Digest, Sha256};
use tokio::time::timeout;

use super::PENDING;
use super::record::{ClaimState, Joined, Ownership, Record, nonce};
use crate::clock::unix_millis;
use crate::error::{Error, ErrorKind};
#[cfg(feature = "sqlite")]
use crate::json_blob::{Edit, ExclusiveBlobs};
use crate::json_blob::{JsonBlob, Known, Version, is_raced};
use crate::queue_core::QueueCore;
use crate::runtime::Runtime;
use crate::settings::Metadata;
use crate::storage::{
    BlobName, BlobProperties, ContainerName, ETag, EXPIRES, StoreError, StoreErrorKind, Tries, list_all,
    needed_at_most_until,
};
use crate::undelivered::UndeliveredRef;
use jobqueue_storage::fast::hex::to_hex;

pub(crate) const CONTAINER: &str = "jobqueue-unique";
/// The maximum size of a record in bytes: an id of 1,024 bytes, all of them escaped, and some hundred bytes more.
const MAX_BYTES: u64 = 16 * 1024;
/// The number of records that are read and freed at once when a queue is cleared.
const AT_ONCE: usize = 16;
/// The number of times that such a request is sent again.
const RESENDS: u32 = 4;
/// The minimum time for which the record of a send is tried.
const LEAST: Duration = Duration::from_secs(5);

/// The record of a claim that the caller owns, or the job that another sender has sent.
pub(super) type Claimed = Result<Version<Record>, Joined>;

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
        Ok(Self::at(core, name))
    }

    fn at(core: &QueueCore, name: BlobName) -> Self {
        let blob = JsonBlob::new(core.storage.blobs(), core.runtime(), name, MAX_BYTES);
        Self(blob.with_metadata(|record: &Record| {
            let expires = record.until.max(record.pending_until) / 1000 + 1;
            Metadata::new().with(EXPIRES, expires.to_string())
        }))
    }

    /// Tries to claim the key, under whose record's id the caller must send then, unless a job was sent; `None` if another sender is about
    /// to send.
    pub(crate) async fn claim(&self, mine: Record, now: SystemTime) -> Result<Option<Claimed>, Error> {
        let claimed =
            self.0.change(Known::Absent, |found| Record::claim(found, &mine, unix_millis(now))).await;
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
            (Ownership::Mine, Some(version)) => Some(Ok(version)),
            (Ownership::Other(joined), _) => joined.map(Err),
            (Ownership::Mine, None) => None,
        })
    }

    /// Claims the key in a transaction of the caller's. The record that it returns is pending until
    /// [`write_exclusively`](Self::write_exclusively) replaces it. Returns the job that was sent, or `None` while another sender is about to
    /// send, which cannot finish before the transaction ends.
    #[cfg(feature = "sqlite")]
    pub(super) fn claim_exclusively(
        &self,
        blobs: &dyn ExclusiveBlobs,
        mine: &Record,
        now: SystemTime,
    ) -> Result<Result<Record, Option<Joined>>, StoreError> {
        self.0.change_exclusively(blobs, |found| match Record::claim(found, mine, unix_millis(now)) {
            Edit::Write(record, _) => Edit::Write(record.clone(), Ok(record)),
            Edit::Keep(Ownership::Other(joined)) => Edit::Keep(Err(joined)),
            Edit::Keep(Ownership::Mine) => Edit::Keep(Err(None)),
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
        let (now, until, nonce) = (unix_millis(now), unix_millis(now + pending), nonce(self.0.runtime()));
        let hold = |found| Record::hold(found, id, &nonce, now, until);
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
        let finish = |found| Record::finish(found, own, outcome);
        Ok(self.0.change(known, finish).await?.result)
    }
}

/// The records of a queue that were there before its messages were deleted, with their tags.
pub(in crate::send) struct SentRecords(Vec<(Records, ETag)>);

impl SentRecords {
    /// Lists the records that have not expired. They are read when the messages are gone: what is sent meanwhile has another tag.
    pub(in crate::send) async fn of(core: &QueueCore) -> Result<Self, Error> {
        let (container, prefix) = (ContainerName::new(CONTAINER)?, format!("{}/", core.name));
        let listed =
            tries(core.runtime()).run(|| list_all(&**core.storage.blobs(), &container, &prefix)).await?;
        let now = core.runtime().now();
        let is_needed = |found: &BlobProperties| needed_at_most_until(found).is_none_or(|end| now <= end);
        let present = listed.blobs.into_iter().filter(|(_, found)| is_needed(found));
        Ok(Self(present.map(|(name, found)| (Records::at(core, name), found.etag)).collect()))
    }

    /// Frees the keys of the jobs that were sent. A record that has changed since it was listed stays as it is.
    pub(in crate::send) async fn free(self, now: SystemTime) -> Result<(), Error> {
        for records in self.0.chunks(AT_ONCE) {
            try_join_all(records.iter().map(|(records, tag)| free(records, tag, unix_millis(now)))).await?;
        }
        Ok(())
    }
}

async fn free(records: &Records, tag: &ETag, now: u64) -> Result<(), StoreError> {
    let found = match tries(records.0.runtime()).run(|| records.0.read()).await {
        // A damaged record is none.
        Err(e) if e.kind() == StoreErrorKind::Corrupt => None,
        found => found?,
    };
    let Some(read) = found.filter(|read| read.tag() == tag && read.value.is_joined(now)) else {
        return Ok(());
    };
    let change = || {
        let free = |found| Record::freed(found, &read.value);
        records.0.change(Known::Version(read.clone()), free)
    };
    tries(records.0.runtime()).run(change).await.map(drop)
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
    // A key that is held sends again when the hold ends.
    let kind = if error.is_ambiguous() { ErrorKind::Unknown } else { ErrorKind::Storage };
    let text = "the job is not cancelled: its unique key could not be read or locked; try again";
    Error::new(kind, text).with_retryable(retryable).with_source(error)
}
