//! Judges that the journal has the ends of jobs as they happened, that searches find them all, and that no
//! entry is kept for too long.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use jobqueue::storage::ContainerName;
use jobqueue::{Error, JobError, Outcome, Runtime, Worker};
use jobqueue_admin::{Admin, HistoryFilter, HistoryPage, HistoryRecord};
use jobqueue_testing::world::{Disturbance, Entry, Fact, Finding, Node, World};
use tokio::time::{Instant, sleep, timeout_at};

use super::{Evidence, finding};
use crate::mix::actors::subject;
use crate::mix::diary::Diary;
use crate::mix::messages::Unused;
use crate::mix::plan::Plan;

/// The time within which a worker has written an entry to the journal: the flush interval, and the write
/// itself.
const JOURNAL_WRITE_TIME: Duration = Duration::from_secs(15 + 4);
/// The maximum time that a failing storage call takes.
const MAX_FAILED_CALL_TIME: Duration = Duration::from_secs(20);
/// The maximum difference of two times due to rounding.
const ROUNDING: Duration = Duration::from_millis(2);
/// The maximum error of a clock, with rounding.
const MAX_SKEW: Duration = Duration::from_millis(5_002);
const MAX_ENTRIES: usize = 10_000;
const TWO_DAYS: Duration = Duration::from_secs(2 * 86_400);

/// The end of a job: the name of the job in the history, the outcome and the worker.
type End = (String, String, String);

fn end_of(record: &HistoryRecord) -> End {
    (subject(&record.source, &record.id), record.outcome.clone(), record.worker.clone())
}

/// Returns the end of a job that an entry of the history reports, with its reason.
fn reported_end(entry: &Entry) -> Option<(End, Option<&str>)> {
    let (Fact::Settled { outcome, .. }, Some(id)) = (&entry.fact, &entry.job) else { return None };
    let (name, reason) = match outcome {
        Outcome::Completed => ("completed", None),
        Outcome::CompletedUncertain => ("completed_uncertain", None),
        Outcome::DeadLettered(reason) => ("dead_lettered", Some(reason.as_str())),
        _ => return None,
    };
    Some(((id.to_string(), name.to_owned(), entry.node.to_string()), reason))
}

/// Searches the journal in a process of the world, and checks that every end found has happened.
pub(in crate::mix) async fn search(world: &World, node: &Node, diary: &Diary) -> Result<(), Error> {
    let page = Admin::new(node.storage()).history(&HistoryFilter::new().limit(MAX_ENTRIES)).await?;
    for found in invented(world, &world.history(), &page.jobs) {
        diary.wrong(found.what, &found.subject, found.detail);
    }
    Ok(())
}

/// Judges the results of searches at the end.
pub(super) async fn check(world: &World, evidence: &Evidence) -> Vec<Finding> {
    let Some(kept) = evidence.diary.plan.history() else { return Vec::new() };
    match searched(world, evidence, kept).await {
        Ok(found) => found,
        Err(error) => vec![finding("the journal cannot be searched", "journal", format!("{error:?}"))],
    }
}

async fn searched(world: &World, evidence: &Evidence, kept: Duration) -> Result<Vec<Finding>, Error> {
    let admin = Admin::new(world.accounts()[0].clone());
    let all = admin.history(&HistoryFilter::new().limit(MAX_ENTRIES)).await?;
    let mut found = invented(world, &evidence.history, &all.jobs);
    found.extend(missing(world, &evidence.history, &all.jobs, kept));
    if !all.complete || all.searched_to.is_some() {
        found.push(finding("a search does not come to its end", "journal", format!("{:?}", all.searched_to)));
    }
    found.extend(selected(&admin, &all.jobs).await?);
    for limit in [1, 3, 8] {
        found.extend(paged(&admin, &all.jobs, limit).await?);
    }
    Ok(found)
}

/// Returns ends in the journal that never happened, or happened otherwise.
fn invented(world: &World, history: &[Entry], records: &[HistoryRecord]) -> Vec<Finding> {
    let began = world.clock().now() - world.now();
    let mut ends: Vec<_> = history.iter().filter_map(|entry| Some((entry, reported_end(entry)?))).collect();
    let mut found = Vec::new();
    for record in records {
        let (end, ended) = (end_of(record), time(&record.ended));
        let is_recorded = |(entry, (reported, reason)): &(&Entry, (End, Option<&str>))| {
            let at = shifted(began + entry.at, ahead(history, entry));
            *reported == end && record.reason.as_deref() == *reason && apart(ended, at) < ROUNDING
        };
        // Each end of the history matches one record.
        match ends.iter().position(is_recorded) {
            Some(at) => drop(ends.swap_remove(at)),
            None => {
                found.push(finding("the journal tells an end that never was", &end.0, format!("{record:?}")))
            }
        }
    }
    found
}

/// Returns how many milliseconds the clock of an entry's process is ahead at that entry.
fn ahead(history: &[Entry], entry: &Entry) -> i64 {
    let own = history[..entry.number].iter().rev().filter(|other| other.node == entry.node);
    let millis = |fact: &Fact| match fact {
        Fact::Incident(Disturbance::Clock { ahead }) => Some(*ahead),
        _ => None,
    };
    own.filter_map(|other| millis(&other.fact)).next().unwrap_or_default()
}

/// Returns ends that the journal lacks although their worker had the time to write them.
fn missing(world: &World, history: &[Entry], records: &[HistoryRecord], kept: Duration) -> Vec<Finding> {
    let oldest = world.now().saturating_sub(kept).checked_add(MAX_SKEW * 2).filter(|_| world.now() > kept);
    let mut written: BTreeMap<End, usize> = BTreeMap::new();
    records.iter().for_each(|record| *written.entry(end_of(record)).or_default() += 1);
    let mut owed: BTreeMap<End, Vec<&Entry>> = BTreeMap::new();
    for entry in history.iter().filter(|entry| oldest.is_none_or(|oldest| entry.at > oldest)) {
        if let Some((end, _)) = reported_end(entry).filter(|_| is_written(history, entry)) {
            owed.entry(end).or_default().push(entry);
        }
    }
    let is_missing =
        |(end, entries): &(End, Vec<&Entry>)| entries.len() > written.get(end).copied().unwrap_or(0);
    let missing = owed.into_iter().filter(is_missing).map(|((job, outcome, worker), entries)| {
        let at: Vec<_> = entries.iter().map(|entry| (entry.number, entry.at)).collect();
        finding("an end is missing in the journal", &job, format!("{outcome} by {worker} at {at:?}"))
    });
    missing.collect()
}

/// Returns whether the worker of an entry has certainly written the entries that were in memory then: it ran
/// on for long enough, or ended in order, and could reach the storage during that time.
fn is_written(history: &[Entry], entry: &Entry) -> bool {
    let own = || history.iter().filter(|other| other.node == entry.node);
    let ended = own().find_map(|other| match &other.fact {
        Fact::Incident(Disturbance::WorkerEnded { .. }) => Some(other.at),
        _ => None,
    });
    let is_death =
        |fact: &Fact| matches!(fact, Fact::Incident(Disturbance::Killed | Disturbance::DiedInCall));
    let died = own().find(|other| is_death(&other.fact)).map(|other| other.at);
    let until = match (ended, died) {
        (Some(ended), _) => ended,
        (None, Some(died)) if died < entry.at + JOURNAL_WRITE_TIME => return false,
        (None, Some(_)) => entry.at + JOURNAL_WRITE_TIME,
        // The process was still frozen when the world ended.
        (None, None) => return false,
    };
    let since = until.saturating_sub(JOURNAL_WRITE_TIME + MAX_FAILED_CALL_TIME);
    let within = |other: &&Entry| since <= other.at && other.at <= until;
    let mut is_frozen = false;
    for other in own().filter(|other| other.at <= until) {
        match &other.fact {
            Fact::Incident(Disturbance::Frozen { .. }) if other.at >= since => return false,
            Fact::Incident(Disturbance::Frozen { .. }) => is_frozen = true,
            Fact::Incident(Disturbance::Continues) if other.at >= since && is_frozen => return false,
            Fact::Incident(Disturbance::Continues) => is_frozen = false,
            Fact::Fault { subject, .. } if within(&other) && is_of_journal(subject) => return false,
            _ => {}
        }
    }
    !is_frozen
}

/// Returns whether a subject is the journal of a database, or a journal in blobs.
fn is_of_journal(subject: &str) -> bool {
    subject == "journal" || subject.starts_with("jobqueue-history")
}

/// Searches for each id, kind, queue, outcome and time. Each search must find the same as a filter over all
/// records.
async fn selected(admin: &Admin, all: &[HistoryRecord]) -> Result<Vec<Finding>, Error> {
    let mut found = Vec::new();
    type Part = (&'static str, fn(&HistoryRecord) -> &str, fn(HistoryFilter, &str) -> HistoryFilter);
    let parts: [Part; 5] = [
        ("id", |record| &record.id, |filter, id| filter.id(id)),
        ("kind", |record| &record.kind, |filter, kind| filter.kind(kind)),
        ("queue", |record| &record.queue, |filter, queue| filter.queue(queue)),
        ("outcome", |record| &record.outcome, |filter, outcome| filter.outcome(outcome)),
        ("time", |record| &record.ended, |filter, ended| filter.since(time(ended))),
    ];
    for (name, of, select) in parts {
        let mut wanted: Vec<&str> = all.iter().map(of).collect();
        wanted.sort_unstable();
        wanted.dedup();
        for value in wanted {
            let page = admin.history(&select(HistoryFilter::new().limit(MAX_ENTRIES), value)).await?;
            let is_meant = |record: &&HistoryRecord| match name {
                "time" => time(of(record)) >= time(value),
                _ => of(record) == value,
            };
            let expected: Vec<_> = all.iter().filter(is_meant).cloned().collect();
            found.extend(difference(&format!("{name} {value}"), &expected, &page.jobs));
        }
    }
    Ok(found)
}

/// Reads page by page. All pages together must have every job once.
async fn paged(admin: &Admin, all: &[HistoryRecord], limit: usize) -> Result<Vec<Finding>, Error> {
    let (mut jobs, mut filter) = (Vec::new(), HistoryFilter::new().limit(limit));
    for _ in 0..=all.len() {
        let HistoryPage { jobs: page, searched_to, .. } = admin.history(&filter).await?;
        jobs.extend(page);
        match searched_to {
            Some(until) => filter = filter.until(time(&until)),
            None => return Ok(difference(&format!("pages of {limit}"), all, &jobs).into_iter().collect()),
        }
    }
    Ok(vec![finding("pages of the journal have no end", "journal", format!("of {limit} jobs"))])
}

fn difference(search: &str, expected: &[HistoryRecord], got: &[HistoryRecord]) -> Option<Finding> {
    let sorted = |records: &[HistoryRecord]| {
        let mut texts: Vec<_> = records.iter().map(|record| format!("{record:?}")).collect();
        texts.sort_unstable();
        texts
    };
    if sorted(expected) == sorted(got) && got.is_sorted_by(|one, two| one.ended >= two.ended) {
        return None;
    }
    let ids = |records: &[HistoryRecord]| records.iter().map(|record| record.id.clone()).collect::<Vec<_>>();
    let detail = format!("{search}: {:?} instead of {:?}", ids(got), ids(expected));
    Some(finding("a search of the journal misses or repeats jobs", "journal", detail))
}

/// Returns the entries and blobs of the journal that are left although they are older than a worker keeps
/// them.
pub(super) async fn left_over(world: &World, plan: &Plan) -> Vec<Finding> {
    let Some(kept) = plan.history() else { return Vec::new() };
    let storage = &world.accounts()[0];
    sleep(kept + TWO_DAYS).await;
    let until = sleep(Duration::from_secs(60));
    let handler = async |_: Unused| Ok::<_, JobError>(());
    let worker = Worker::builder(storage.clone().with_runtime(Runtime::virtual_time(world.clock())))
        .history(kept)
        .handle(handler);
    let ended = match worker.build() {
        Ok(worker) => timeout_at(Instant::now() + Duration::from_secs(600), worker.run_until(until)).await,
        Err(error) => return vec![finding("the world itself failed", "world", error.to_string())],
    };
    let mut found = Vec::new();
    if !matches!(ended, Ok(Ok(_))) {
        found.push(finding("a worker that sweeps its journal does not end", "world", format!("{ended:?}")));
    }
    let Ok(container) = ContainerName::new("jobqueue-history") else { return found };
    let page = storage.blobs().list_blobs(&container, "", None).await;
    let mut names: Vec<_> = page.into_iter().flat_map(|page| page.blobs).map(|(name, _)| name).collect();
    match Admin::new(storage.clone()).history(&HistoryFilter::new()).await {
        Ok(page) => names.extend(page.jobs.into_iter().map(|job| job.id)),
        Err(error) => found.push(finding("the journal cannot be searched", "journal", format!("{error:?}"))),
    }
    let names = names.into_iter();
    found.extend(names.map(|name| finding("the journal is kept for too long", &name, format!("{kept:?}"))));
    found
}

fn time(text: &str) -> SystemTime {
    text.parse::<jiff::Timestamp>().map_or(SystemTime::UNIX_EPOCH, SystemTime::from)
}

fn shifted(time: SystemTime, millis: i64) -> SystemTime {
    let by = Duration::from_millis(millis.unsigned_abs());
    if millis < 0 { time - by } else { time + by }
}

fn apart(one: SystemTime, other: SystemTime) -> Duration {
    one.duration_since(other).unwrap_or_else(|before| before.duration())
}
