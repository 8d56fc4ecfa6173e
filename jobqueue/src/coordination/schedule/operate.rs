//! The operators' view of schedules, and their requests to the leaders: pause, resume, send now.
//!
//! The stored state describes the schedule and contains the operators' requests. A leader reads the state at
//! least every 30 seconds.

use jiff::Timestamp;

use super::CONTAINER;
pub use super::record::ScheduleRequest;
use super::record::{ScheduleDescription, Stored};
use super::state::{document, is_damaged, name, unreadable};
use super::timetable::Timetable;
use crate::error::{Error, ErrorKind};
use crate::job::outcome::chain;
use crate::json_blob::Known;
use crate::storage::{ContainerName, Storage};

/// A schedule, as its state in the storage shows it.
#[derive(Debug, Clone, Default)]
pub struct ScheduleRecord {
    /// The name.
    pub name: String,
    /// The schedule's job and times; `None` if no leader has written them.
    pub about: Option<ScheduleDescription>,
    /// The time up to which all slots are done.
    pub done: Option<Timestamp>,
    /// True while the schedule sends only the jobs that an operator triggers.
    pub paused: bool,
    /// The time at which an operator triggered a job that is not sent yet.
    pub triggered: Option<Timestamp>,
    /// The next slots.
    pub next: Vec<Timestamp>,
    /// The reason why the state cannot be read. The leader then sends nothing, and the other fields are
    /// unknown.
    pub problem: Option<String>,
}

/// Returns all schedules with their next `count` slots after `now`. Costs a listing, and a request for each
/// schedule.
pub async fn schedules(
    storage: &Storage,
    now: Timestamp,
    count: usize,
) -> Result<Vec<ScheduleRecord>, Error> {
    let container = ContainerName::new(CONTAINER)?;
    let mut all = Vec::new();
    for (blob, _) in crate::storage::list_all(&**storage.blobs(), &container, "").await?.blobs {
        let unread = ScheduleRecord { name: blob.name().to_owned(), ..ScheduleRecord::default() };
        match document(storage, &blob).read().await {
            Ok(Some(version)) => all.push(record(unread, version.value, now, count)),
            Ok(None) => {}
            Err(e) if is_damaged(&e) => {
                all.push(ScheduleRecord { problem: Some(chain(&unreadable(e))), ..unread });
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(all)
}

fn record(unread: ScheduleRecord, stored: Stored, now: Timestamp, count: usize) -> ScheduleRecord {
    let moment = |millis| Timestamp::from_millisecond(millis).ok();
    let done = moment(stored.done);
    let timetable = stored.about.as_ref().and_then(ScheduleDescription::timetable);
    let next = timetable.map(|timetable| slots(&timetable, done.unwrap_or(now).max(now), count));
    ScheduleRecord {
        about: stored.about,
        done,
        paused: stored.paused,
        triggered: stored.triggered.and_then(moment),
        next: next.unwrap_or_default(),
        ..unread
    }
}

fn slots(timetable: &Timetable, after: Timestamp, count: usize) -> Vec<Timestamp> {
    let next = |slot: &Timestamp| timetable.next_after(*slot);
    std::iter::successors(timetable.next_after(after), next).take(count).collect()
}

/// Writes a request into the state of a schedule. Returns false if the state already contains it.
pub async fn request_change(
    storage: &Storage,
    schedule: &str,
    request: ScheduleRequest,
) -> Result<bool, Error> {
    let document = document(storage, &name(schedule)?);
    let changed = document.change(Known::Nothing, |found| Stored::asked(found, request)).await;
    changed
        .map_err(unreadable)?
        .result
        .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no schedule `{schedule}`")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{PutBlob, put_creating};

    #[tokio::test]
    async fn schedule_whose_state_is_damaged_is_in_the_list_beside_the_others() {
        let storage = Storage::memory();
        let states = [
            ("a", "{".to_owned()),
            ("b", "x".repeat(5_000)),
            ("c", r#"{"done":0,"pending":null}"#.to_owned()),
        ];
        for (schedule, state) in states {
            let blob = name(schedule).unwrap();
            put_creating(&**storage.blobs(), &blob, state.into(), PutBlob::new()).await.unwrap();
        }
        let listed = schedules(&storage, Timestamp::UNIX_EPOCH, 5).await.unwrap();
        assert_eq!(listed.iter().map(|schedule| schedule.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
        let problems: Vec<_> = listed.iter().map(|schedule| schedule.problem.as_deref()).collect();
        assert!(
            problems[..2].iter().all(|problem| problem.unwrap().contains("damaged; delete it")),
            "{problems:?}"
        );
        assert_eq!(problems[2], None);
    }
}
