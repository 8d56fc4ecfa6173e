//! The operators' view of schedules, and their requests to the leaders: to pause, to go on, to send now.
//!
//! The state describes the schedule, once a leader of this version has written it. A leader reads the state at least
//! every 30
//! seconds; it contains the operators' requests.

use jiff::Timestamp;

use super::CONTAINER;
pub use super::record::Wish;
use super::record::{About, Stored};
use super::state::{document, name, unreadable};
use super::timetable::Timetable;
use crate::error::{Error, ErrorKind};
use crate::json_blob::Known;
use crate::storage::{BlobName, ContainerName, Storage, StoreErrorKind as Kind};

/// A schedule, as its state in the storage shows it.
#[derive(Debug, Clone)]
pub struct ScheduleRecord {
    /// The name.
    pub name: String,
    /// The schedule's job and times; `None` if no leader has written them.
    pub about: Option<About>,
    /// The time up to which all slots were dealt with.
    pub done: Option<Timestamp>,
    /// True while it sends nothing.
    pub paused: bool,
    /// The time at which an operator has asked for a job that was not sent yet.
    pub triggered: Option<Timestamp>,
    /// The next slots.
    pub next: Vec<Timestamp>,
}

/// Returns all schedules with their next `count` slots after `now`. Costs a listing, and a request for each.
pub async fn schedules(
    storage: &Storage,
    now: Timestamp,
    count: usize,
) -> Result<Vec<ScheduleRecord>, Error> {
    let container = ContainerName::new(CONTAINER)?;
    let mut all = Vec::new();
    for (blob, _) in crate::storage::list_all(&**storage.blobs(), &container, "").await?.blobs {
        match document(storage, &blob).read().await {
            Ok(Some(version)) => all.push(record(&blob, version.value, now, count)),
            Ok(None) => {}
            // Another program may have written it.
            Err(e) if e.kind() == Kind::Corrupt => {}
            Err(e) => return Err(e.into()),
        }
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

/// Writes a wish into the state of a schedule; returns false if the state says so already.
pub async fn wish(storage: &Storage, schedule: &str, wish: Wish) -> Result<bool, Error> {
    let document = document(storage, &name(schedule)?);
    let granted =
        document.change(Known::Nothing, |found| Stored::asked(found, wish)).await.map_err(unreadable)?;
    granted
        .result
        .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no schedule `{schedule}`")))
}
