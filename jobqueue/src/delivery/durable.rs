//! State that outlives an attempt: durable steps and recorded effects.
//!
//! Steps are stored in the message's checkpoint, effects in blobs that are created if absent. Records of
//! ended jobs are such blobs, too. A record is either absent or complete; its content never changes. It is
//! kept for at least 30 days, and the record of an effect for longer while deliveries of the job find it:
//!
//! | record | written by | found by | if its writer gets no answer |
//! |---|---|---|---|
//! | effect: its result, empty if JSON cannot express it | the delivery that ran the effect | later calls, which return it | the write is retried until the lease ends, also if the handler is dropped, then `LeaseLost`; putting the message back or dead-lettering it waits for the record; the call returns the recorded result |
//! | effect in a transaction | the transaction | later transactions, which omit the effect | the commit decides |
//! | completion | the delivery that ran the job, if its message may still exist or another message may share its blobs | deliveries of the job, which end it without a run | the write is retried until the message can be delivered; then the job may run again |
//! | claimed letter: its number and time | a redrive or purge, before it handles the letter | deliveries of the message, which store no second letter; passes that meet another letter of the same end, which is a copy | the next pass handles the same letter |
//! | put-back | a redrive, before it deletes the letter | later redrives, which only delete the letter | a later redrive may put the job back again |

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tokio::time::timeout_at;
use tokio_util::task::TaskTracker;

use super::checkpoint::{from_json, to_json};
use super::context::Context;
use super::leased_job::LeasedJob;
use super::progress::{load_saved, save_step};
use crate::envelope::{Identity, hash_part};
use crate::error::{Error, ErrorKind};
use crate::job::outcome::{JobError, chain};
use crate::json_blob::create_once;
use crate::queue_core::{ONCE, QueueCore};
use crate::storage::{
    Blob, BlobName, BlobStore, ContainerName, PutBlob, Tries, get_if_present, needed_at_most_until,
    needed_until, put_creating,
};
use jobqueue_storage::fast::hex::to_hex;

/// The container for records of completions, claimed letters and put-backs.
pub(crate) const COMPLETED: &str = "jobqueue-completed";
/// The minimum time for which a record is kept: 30 days.
const RECORD_LIFE: Duration = Duration::from_secs(30 * 86_400);
/// The maximum length of a step's name, in bytes.
const MAX_STEP_NAME_BYTES: usize = 128;
/// The maximum size of a recorded result, in bytes.
const MAX_RECORD_BYTES: u64 = 32 * 1024 * 1024;

impl Context {
    /// Runs `work` once and saves its result with the message. Later attempts return the saved result without
    /// running `work`.
    ///
    /// The `name` (1–128 bytes) identifies the step within the job: use each name once, and keep it in later
    /// releases. While the storage refuses to save the result, saving is retried until the lease ends. `work`
    /// runs again if the process crashes, or loses the lease, after `work` has ended and before its result is
    /// saved. It also runs again if the answer to saving is lost and the lease ends before another change of
    /// the message saves the result. Make `work` idempotent, or use [`once`](Self::once) for an effect
    /// elsewhere. Results are part of the checkpoint, which is stored in a blob when it is large.
    ///
    /// ```
    /// # use jobqueue::{Context, JobError, QueueMessage}; use serde::{Deserialize, Serialize};
    /// # #[derive(Serialize, Deserialize, QueueMessage)]
    /// # #[message(queue = "videos", kind = "video")] struct Video { file: String }
    /// # async fn encode(_: &str) -> Result<String, std::io::Error> { Ok("x".into()) }
    /// # async fn publish(_: &str) -> Result<(), std::io::Error> { Ok(()) }
    /// async fn process(video: Video, ctx: Context) -> Result<(), JobError> {
    ///     let encoded = ctx.step("encode", || encode(&video.file)).await?;   // hours of work, done once
    ///     ctx.step("publish", || publish(&encoded)).await                    // a retry begins here
    /// }
    /// ```
    ///
    /// # Errors
    /// The error of `work`; nothing is saved then. [`is_lease_lost`](Error::is_lease_lost) if the lease ended
    /// before `work` began, or before the result was saved. [`Storage`](ErrorKind::Storage) if the saved
    /// results cannot be read, before `work` begins; or if the storage permanently refuses to save the
    /// result. In the latter case later steps and checkpoints are saved without it, and without earlier ones
    /// that are not saved yet, and `work` runs again unless the put-back of the message saves the result.
    /// [`TooLarge`](ErrorKind::TooLarge) if the checkpoint would exceed 32 MiB. If JSON cannot express the
    /// result, [`Invalid`](ErrorKind::Invalid), and [`Undecodable`](ErrorKind::Undecodable) in each later
    /// attempt, which does not run `work` again.
    ///
    /// # Cancel safety
    /// If the future is dropped while `work` runs, `work` is dropped. If it is dropped later, the next change
    /// of the message, such as its put-back, saves the result, unless the result needs a blob that cannot be
    /// stored then.
    pub async fn step<T, E, W, F>(&self, name: &str, work: W) -> Result<T, JobError>
    where
        T: Serialize + DeserializeOwned,
        E: Into<JobError>,
        W: FnOnce() -> F,
        F: Future<Output = Result<T, E>>,
    {
        if name.is_empty() || name.len() > MAX_STEP_NAME_BYTES {
            let text = format!("the name of a step has 1 to {MAX_STEP_NAME_BYTES} bytes");
            return Err(Error::new(ErrorKind::Invalid, text).into());
        }
        if let Some(saved) = load_saved(self.leased_job()).await?.step(name)? {
            return Ok(from_json(saved)?);
        }
        self.check_lease()?;
        let result = work().await.map_err(Into::into)?;
        let (json, unwritable) = match to_json(&result) {
            Ok(json) => (Some(json), None),
            Err(error) => (None, Some(error)),
        };
        save_step(self.leased_job(), name, json).await?;
        unwritable.map_or(Ok(result), |error| Err(error.into()))
    }

    /// Runs an effect and records its result, so that retries and duplicate deliveries of the job return the
    /// recorded result instead of running the effect again. The record belongs to the job's queue, source and
    /// id, and to `key`.
    ///
    /// The record is a blob that is created if absent. It outlives a message with a time to live, and is kept
    /// for at least 30 days. A call that finds the record keeps it for another 30 days if less than 15 are
    /// left. So it also outlives a message without a time to live, unless no worker receives that message for
    /// two weeks or more.
    ///
    /// While the storage throttles or cannot be reached, writing the record is retried until the lease ends.
    /// If the handler ends before the record is written, also because its worker stops, the message is put
    /// back or dead-lettered only after the record. If there is no record after 15 minutes, or at the end of
    /// a shutdown, the message is put back for the rest of the lease (at the end of a shutdown, a job in
    /// order for at most 59 seconds). A process that lives on keeps trying to write the record during that
    /// time.
    ///
    /// Two deliveries that run at the same moment may both run the effect; both return the result that was
    /// recorded first. A machine that sleeps, or a virtual machine that is paused, beyond the end of the
    /// lease also leads to two such deliveries: the lease counts as held until its next renewal. A crash, or
    /// the end of the lease, between the effect and the record also lets the effect run again: pass the id of
    /// the job and `key` on to services that support idempotency keys. `key` alone is the same for all jobs.
    ///
    /// # Errors
    /// The error of `effect`; nothing is recorded then. [`is_lease_lost`](Error::is_lease_lost) if the lease
    /// ended before the effect began, which then does not run, or before the record was written.
    /// [`Storage`](ErrorKind::Storage) if the record cannot be read, or if the storage refuses to write it. A
    /// result of more than 32 MiB is recorded, and each retry fails with [`TooLarge`](ErrorKind::TooLarge)
    /// instead of repeating the effect. If JSON cannot express the result, the call fails with
    /// [`Invalid`](ErrorKind::Invalid), and each retry with [`Undecodable`](ErrorKind::Undecodable), also
    /// without repeating the effect.
    ///
    /// # Cancel safety
    /// If the future is dropped while `effect` runs, the effect may have happened without a record. If it is
    /// dropped later, the record is still written. If the job succeeds before that, writing is retried only
    /// for the rest of the lease: after that a second message of the job, for example from a repeated send,
    /// may run the effect again.
    pub async fn once<T, E, W, F>(&self, key: &str, effect: W) -> Result<T, JobError>
    where
        T: Serialize + DeserializeOwned,
        E: Into<JobError>,
        W: FnOnce() -> F,
        F: Future<Output = Result<T, E>>,
    {
        let job = self.info();
        let identity = Identity::from(job).digest().to_string();
        let name = digest_name(ONCE, [job.queue.as_str(), &identity, key])?;
        if let Some(recorded) = read_recorded(self.leased_job(), &name).await? {
            return Ok(from_json(&recorded)?);
        }
        self.check_lease()?;
        let result = effect().await.map_err(Into::into)?;
        let (json, unwritable) = match to_json(&result) {
            Ok(json) => (json, None),
            // Recorded as an empty text: the effect must not be repeated.
            Err(error) => (String::new(), Some(error)),
        };
        let is_recorded = record_effect(self.leased_job(), &name, json).await?;
        if let Some(error) = unwritable {
            return Err(error.into());
        }
        if is_recorded {
            return Ok(result);
        }
        // Another delivery was faster, or the answer to this delivery's own write was lost.
        match read_recorded(self.leased_job(), &name).await? {
            Some(recorded) => Ok(from_json(&recorded)?),
            None => Ok(result),
        }
    }

    /// Checks that the lease is held, immediately before work that must not be repeated. A process that was
    /// suspended after it had looked for the result would otherwise repeat the work of its successor.
    fn check_lease(&self) -> Result<(), Error> {
        Ok(self.leased_job().lease.check_not_ended()?)
    }
}

/// Reads the result of an effect, and extends the life of its record if the message may outlive it.
pub(super) fn read_recorded<'j>(
    job: &'j LeasedJob,
    name: &'j BlobName,
) -> BoxFuture<'j, Result<Option<String>, Error>> {
    Box::pin(async {
        let Some(record) = get_if_present(&**job.core.blobs(), name, MAX_RECORD_BYTES).await? else {
            return Ok(None);
        };
        extend_life(job, name, &record).await;
        Ok(Some(text_of(record)?))
    })
}

/// Rewrites a record if a sweep may remove it while the message lives. After a failure, the next delivery
/// tries again.
async fn extend_life(job: &LeasedJob, name: &BlobName, record: &Blob) {
    let Some(options) = life_extension(job, record) else { return };
    // Overwriting is safe: the text of a record never changes.
    let put = || put_creating(&**job.core.blobs(), name, record.data.clone(), options.clone());
    if let Err(error) = Tries::brief(job.core.runtime(), 1, 1).run(put).await {
        crate::log::warn!(queue = %job.core.name, job = job.logged_id(), error = %chain(&error), "the record of an effect cannot be kept for longer now");
    }
}

/// Returns the options that extend the life of a record; `None` if it lives long enough. Most messages never
/// expire, and each is delivered at least every 7 days while workers receive from its queue.
pub(super) fn life_extension(job: &LeasedJob, record: &Blob) -> Option<PutBlob> {
    let now = job.core.now();
    let end = needed_at_most_until(&record.properties)?;
    // The end of a record is stored in whole seconds, and the sweep waits a day longer.
    let needed = job.expires.unwrap_or(now + RECORD_LIFE / 2);
    let is_enough = end.checked_add(Duration::from_secs(1)).is_none_or(|end| end >= needed);
    (!is_enough).then(|| PutBlob::new().with_metadata(needed_until(now, Some(expiry(now, job.expires)))))
}

/// Records the result of an effect until the lease ends. Returns false if a result is already recorded. A
/// separate task writes the record, even if the caller is dropped; the message is put back after that.
fn record_effect<'j>(
    job: &'j Arc<LeasedJob>,
    name: &BlobName,
    json: String,
) -> BoxFuture<'j, Result<bool, Error>> {
    let effects = job.effects.get_or_init(TaskTracker::new);
    let recorded = effects.track_future(record_while_leased(Arc::clone(job), name.clone(), json));
    Box::pin(async move {
        tokio::select! {
            biased;
            recorded = job.core.runtime().spawn(recorded) => recorded.unwrap_or_else(|_| Err(unrecorded())),
            () = job.lease.ended() => Err(unrecorded()),
        }
    })
}

/// Retries recording the result of an effect until another worker can have the message.
async fn record_while_leased(job: Arc<LeasedJob>, name: BlobName, json: String) -> Result<bool, Error> {
    let expires = expiry(job.core.now(), job.expires);
    let tries = Tries::persistent(job.core.runtime());
    let mut recorded = pin!(record(&job.core, &name, json, expires, tries));
    loop {
        // A renewal may have extended the lease.
        let deadline = job.lease.deadline();
        match timeout_at(deadline, &mut recorded).await {
            Ok(recorded) => return recorded,
            Err(_) if job.lease.deadline() <= deadline => return Err(unrecorded()),
            Err(_) => {}
        }
    }
}

fn unrecorded() -> Error {
    Error::new(ErrorKind::LeaseLost, "the lease ended before the result of an effect was recorded")
}

/// Returns a name that reveals nothing about its parts.
pub(super) fn digest_name<const N: usize>(container: &str, parts: [&str; N]) -> Result<BlobName, Error> {
    let mut hash = Sha256::new();
    for part in parts {
        hash_part(&mut hash, part);
    }
    Ok(BlobName::new(ContainerName::new(container)?, to_hex(&hash.finalize()))?)
}

pub(super) fn expiry(now: SystemTime, message: Option<SystemTime>) -> SystemTime {
    let least = now + RECORD_LIFE;
    message.map_or(least, |message| message.max(least))
}

pub(super) async fn read(blobs: &dyn BlobStore, name: &BlobName) -> Result<Option<String>, Error> {
    get_if_present(blobs, name, MAX_RECORD_BYTES).await?.map(text_of).transpose()
}

fn text_of(record: Blob) -> Result<String, Error> {
    let text = String::from_utf8(record.data.into());
    text.map_err(|e| Error::new(ErrorKind::Undecodable, "a record is not text").with_source(e))
}

/// Creates a record that is kept until `expires`. Returns false if it already exists.
pub(super) async fn record(
    core: &QueueCore,
    name: &BlobName,
    text: String,
    expires: SystemTime,
    tries: Tries,
) -> Result<bool, Error> {
    let needed = needed_until(core.now(), Some(expires));
    Ok(create_once(&**core.blobs(), name, text.into(), needed, tries).await?)
}
