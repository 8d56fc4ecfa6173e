//! What operators see of schedules, and what they ask of the leaders: to pause, to go on, to send now.
//!
//! The state of a schedule says what it is, once a leader of this version has written it. A leader reads the state at least every 30
//! seconds; it finds there what an operator has asked for.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;

use super::CONTAINER;
use super::state::{About, MAX_BYTES, Stored, name};
use super::timetable::Timetable;
use crate::error::{Error, ErrorKind};
use crate::name::{BlobName, ContainerName};
use crate::storage::{PutBlob, Storage, StoreErrorKind as Kind};

/// The number of tries to change a state that its leader writes at the same time.
const TRIES: u32 = 8;
/// The time between two of them while the leader sends.
const PAUSE: Duration = Duration::from_millis(250);

/// A schedule.
#[derive(Debug, Clone)]
pub(crate) struct ScheduleRecord {
    pub(crate) name: String,
    /// What it sends and when; `None` if no leader has told.
    pub(crate) about: Option<About>,
    /// The time up to which all slots were dealt with.
    pub(crate) done: Option<Timestamp>,
    pub(crate) paused: bool,
    /// The time at which an operator has asked for a job that was not sent yet.
    pub(crate) triggered: Option<Timestamp>,
    /// The next slots.
    pub(crate) next: Vec<Timestamp>,
}

/// Returns all schedules with their next `count` slots after `now`. Costs a listing, and a request for each.
pub(crate) async fn schedules(
    storage: &Storage,
    now: Timestamp,
    count: usize,
) -> Result<Vec<ScheduleRecord>, Error> {
    let container = ContainerName::new(CONTAINER)?;
    let mut all = Vec::new();
    for (blob, _) in crate::storage::list_all(&**storage.blobs(), &container, "").await? {
        let found = match storage.blobs().get_blob(&blob, MAX_BYTES).await {
            Ok(found) => found,
            Err(e) if e.kind() == Kind::BlobNotFound => continue,
            Err(e) => return Err(e.into()),
        };
        // Another program may have written it.
        let Ok(stored) = serde_json::from_slice::<Stored>(&found.data) else { continue };
        all.push(record(&blob, stored, now, count));
    }
    Ok(all)
}

fn record(blob: &BlobName, stored: Stored, now: Timestamp, count: usize) -> ScheduleRecord {
    let moment = |millis| Timestamp::from_millisecond(millis).ok();
    let timetable = stored.about.as_ref().and_then(About::timetable);
    let done = moment(stored.done);
    let slots =
        timetable.map_or_else(Vec::new, |timetable| slots(&timetable, done.unwrap_or(now).max(now), count));
    ScheduleRecord {
        name: blob.name().to_owned(),
        about: stored.about,
        done,
        paused: stored.paused,
        triggered: stored.triggered.and_then(moment),
        next: slots,
    }
}

fn slots(timetable: &Timetable, after: Timestamp, count: usize) -> Vec<Timestamp> {
    let next = |slot: &Timestamp| timetable.next_after(*slot);
    std::iter::successors(timetable.next_after(after), next).take(count).collect()
}

/// The wish of an operator.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wish {
    Pause(bool),
    Trigger(Timestamp),
}

/// Writes a wish into the state of a schedule; returns false if the state says so already.
pub(crate) async fn wish(storage: &Storage, schedule: &str, wish: Wish) -> Result<bool, Error> {
    let blob = name(schedule)?;
    let blobs = Arc::clone(storage.blobs());
    for attempt in 0..TRIES {
        let found = match blobs.get_blob(&blob, MAX_BYTES).await {
            Err(e) if matches!(e.kind(), Kind::BlobNotFound | Kind::ContainerNotFound) => {
                let text = format!("there is no schedule `{schedule}`");
                return Err(Error::new(ErrorKind::NotFound, text).with_source(e));
            }
            found => found?,
        };
        let damaged =
            |e| Error::new(ErrorKind::Undecodable, "the state of the schedule is damaged").with_source(e);
        let mut stored: Stored = serde_json::from_slice(&found.data).map_err(damaged)?;
        // Its leader is sending: a write between its two would have it send the slot again.
        if stored.pending.is_some() && attempt + 1 < TRIES {
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        match wish {
            Wish::Pause(paused) if stored.paused == paused => return Ok(false),
            Wish::Pause(paused) => stored.paused = paused,
            Wish::Trigger(_) if stored.triggered.is_some() => return Ok(false),
            Wish::Trigger(at) => stored.triggered = Some(at.as_millisecond()),
        }
        let json = serde_json::to_vec(&stored).map_err(damaged)?;
        match blobs.put_blob(&blob, Bytes::from(json), PutBlob::if_match(found.properties.etag)).await {
            Ok(_) => return Ok(true),
            // Its leader was faster.
            Err(e) if e.kind() == Kind::ConditionNotMet => {}
            Err(e) => return Err(e.into()),
        }
    }
    let text = "the schedule's leader changes its state all the time; try again";
    Err(Error::new(ErrorKind::Conflict, text).with_retryable(true))
}
