//! The requests that read and change the records of keys.

use std::time::{Duration, SystemTime};

use futures_util::future::try_join_all;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout};

use super::record::{ClaimState, Hold, Ownership, PENDING, Record, nonce};
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

/// The result of claiming a key.
#[derive(Debug)]
pub(super) enum Claim {
    /// The caller must send under the id and the source of the record.
    Mine(Box<Hold>),
    /// Another sender has sent the job with this id.
    Joined(String),
    /// Another process is about to send or to cancel, with this record if it was read.
    Busy(Option<Box<Record>>),
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
        Ok(Self::at(core, name))
    }

    fn at(core: &QueueCore, name: BlobName) -> Self {
        let blob = JsonBlob::new(core.storage.blobs(), core.runtime(), name, MAX_BYTES);
        Self(blob.with_metadata(|record: &Record| {
            let expires = record.until.max(record.pending_until) / 1000 + 1;
            Metadata::new().with(EXPIRES, expires.to_string())
        }))
    }

    /// Tries to claim the key with the record `mine`, unless a job was sent. `is_abandoned` says of a pending record whether its owner has died.
    pub(super) async fn claim(
        &self,
        mine: Record,
        now: SystemTime,
        is_abandoned: impl Fn(&Record) -> bool,
    ) -> Result<Claim, Error> {
        let begun = Instant::now();
        let claim = |found| Record::claim(found, &mine, unix_millis(now), &is_abandoned);
        let claimed = match self.0.change(Known::Absent, claim).await {
            // A sweep may hold the record for a moment and remove it.
            Err(e) if is_raced(e.kind()) => return Ok(Claim::Busy(None)),
            claimed => claimed.map_err(|e| {
                let retryable = e.is_retryable();
                Error::new(ErrorKind::Rejected, "the message is not stored: claiming its unique key failed")
                    .with_retryable(retryable)
                    .with_source(e)
            })?,
        };
        Ok(match (claimed.result, claimed.version) {
            (Ownership::Mine, Some(record)) if claimed.is_latest => {
                Claim::Mine(Box::new(Hold::new(record, begun)))
            }
            (Ownership::Other(Some(joined)), _) => Claim::Joined(joined),
            // It was taken over before the answer to its claim was found.
            (Ownership::Other(None) | Ownership::Mine, found) => {
                Claim::Busy(found.map(|found| Box::new(found.value)))
            }
        })
    }

    /// Begins the time of a hold anew. Returns false if another process has taken the key over.
    pub(super) async fn renew(&self, hold: &mut Hold) -> Result<bool, StoreError> {
        let begun = Instant::now();
        let pending_until = unix_millis(self.0.runtime().now() + PENDING);
        let own = hold.record.value.clone();
        let renew = |found| Record::finish(found, &own, |record| record.held_until(pending_until));
        let renewed = self.0.change(Known::Version(hold.record.clone()), renew).await?;
        let is_own = renewed.result && renewed.is_latest;
        let Some(record) = renewed.version.filter(|_| is_own) else { return Ok(false) };
        *hold = Hold::new(record, begun);
        Ok(true)
    }

    /// Holds a key under which a message was sent, that of the job that was `sent` if one is given. `is_abandoned` says of a pending record
    /// whether its owner has died.
    pub(super) async fn hold(
        &self,
        sent: Option<&Sent>,
        now: SystemTime,
        is_abandoned: impl Fn(&Record) -> bool,
    ) -> Result<ClaimState, Error> {
        let (begun, nonce) = (Instant::now(), nonce(self.0.runtime()));
        let hold = |found| Record::hold(found, sent, &nonce, now, &is_abandoned);
        let held = match self.0.change(Known::Nothing, hold).await {
            Err(e) if is_raced(e.kind()) => return Ok(ClaimState::Busy(None)),
            held => held.map_err(not_cancelled)?,
        };
        let hold = match (held.result, held.version) {
            (Ownership::Mine, Some(record)) if held.is_latest => Hold::new(record, begun),
            // The record may be of another job since: it is asked again.
            (Ownership::Other(ClaimState::Busy(_)) | Ownership::Mine, found) => {
                return Ok(ClaimState::Busy(found.map(|found| Box::new(found.value))));
            }
            (Ownership::Other(state), _) => return Ok(state),
        };
        let message = hold.record.value.message.as_ref().map(UndeliveredRef::stored);
        Ok(message.map_or(ClaimState::Nothing, |message| ClaimState::Held(Box::new(hold), message)))
    }

    /// Records the result as `outcome` makes it from the record. Tries while the storage cannot serve it, until the hold on the key ends:
    /// if the result is not recorded by then, the next sender sends under the same id. A send that took almost all of the hold is recorded
    /// too, if no other sender has taken the key over: it is tried for some seconds. Returns false if another process has changed the record.
    pub(super) async fn finish(&self, hold: Hold, outcome: impl Fn(Record) -> Record) -> bool {
        let left = hold.left().max(LEAST);
        let own = hold.record.value.clone();
        let mut mine = Some(hold.record);
        let record = || self.record(&own, mine.take().map_or(Known::Nothing, Known::Version), &outcome);
        let tries = Tries::persistent(self.0.runtime());
        match timeout(left, tries.run(record)).await {
            Ok(Ok(is_recorded)) => is_recorded,
            failed => {
                let error = failed.ok().and_then(Result::err);
                let error = error.map_or_else(|| "no answer in time".to_owned(), |error| error.to_string());
                crate::log::warn!(record = %self.0.name(), %error, "a unique send or its cancellation could not be recorded; the next send of the key has the same id");
                true
            }
        }
    }

    /// Frees the key, because nothing was stored. If this fails, the next sender waits until the hold on the key ends.
    pub(super) async fn give_up(&self, hold: Hold) {
        let own = hold.record.value.clone();
        if let Err(error) = self.record(&own, Known::Version(hold.record), &Record::into_void).await {
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
