//! Decides which states are legal after a power cut.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jobqueue::clock::ManualClock;
use jobqueue::sqlite::{Options, Synchronous};
use jobqueue::storage::{GetMessages, Storage};
use jobqueue_tests::power::{Disk, Event, Note};
use rusqlite::Connection;

use crate::workload::{History, State, container, name_of, queue};

/// The log of a run, replayed up to some moment.
pub(crate) struct Replay {
    pub(crate) disk: Disk,
    /// For each task, the latest step that had begun, that was acknowledged, and that was acknowledged at the
    /// last sync of SQLite's log.
    began: Vec<usize>,
    acknowledged: Vec<usize>,
    synced: Vec<usize>,
    /// The acknowledged steps at the time when a task began a step.
    seen: BTreeMap<(usize, usize), Vec<usize>>,
}

impl Replay {
    pub(crate) fn new(disk: Disk, tasks: usize) -> Self {
        let none = vec![0; tasks];
        Self { disk, began: none.clone(), acknowledged: none.clone(), synced: none, seen: BTreeMap::new() }
    }

    pub(crate) fn apply(&mut self, event: &Event) {
        self.disk.apply(event);
        match event {
            Event::Note(Note::Began(task, step)) => {
                self.began[*task] = *step;
                self.seen.insert((*task, *step), self.acknowledged.clone());
            }
            Event::Note(Note::Acknowledged(task, step)) => self.acknowledged[*task] = *step,
            Event::Sync(name, _) if name.ends_with("-wal") => self.synced.clone_from(&self.acknowledged),
            _ => {}
        }
    }

    /// Checks that `found` is legal after a power cut now: the queue of each task is at a step that had
    /// begun, and not before one that had to survive; and no step of a task was done after a missing step of
    /// another.
    pub(crate) fn check(
        &self,
        found: &[Option<State>],
        histories: &[History],
        synchronous: Synchronous,
    ) -> Result<(), String> {
        let floor = if synchronous == Synchronous::Full { &self.acknowledged } else { &self.synced };
        let mut at = Vec::new();
        let mut possible = Vec::new();
        for (task, history) in histories.iter().enumerate() {
            let steps: BTreeSet<usize> = (floor[task]..=self.began[task])
                .filter(|step| history.states[*step] == found[task])
                .collect();
            let Some(first) = steps.first() else {
                let newest = history.states[self.acknowledged[task]].as_ref();
                return Err(format!("task {task}: {}", difference(newest, found[task].as_ref())));
            };
            at.push(*first);
            possible.push(steps);
        }
        // The least steps that fit together.
        loop {
            let demands: Vec<_> = (0..at.len()).filter_map(|task| self.seen.get(&(task, at[task]))).collect();
            let least = |task: usize| demands.iter().map(|seen| seen[task]).max().unwrap_or(0);
            let Some(behind) = (0..at.len()).find(|task| at[*task] < least(*task)) else { return Ok(()) };
            match possible[behind].range(least(behind)..).next() {
                Some(step) => at[behind] = *step,
                None => return Err(format!("task {behind} lost more than what was done after it")),
            }
        }
    }
}

/// Checks that `found` is legal after a failure: the acknowledged steps, and besides them only the failed
/// step, if its error was ambiguous.
pub(crate) fn check_after_failure(history: &History, found: Option<&State>) -> Result<(), String> {
    let newest = history.states.last().unwrap().as_ref();
    if found == newest {
        return Ok(());
    }
    let Some(failure) = history.failure.as_ref().filter(|failure| failure.error.is_ambiguous()) else {
        return Err(difference(newest, found));
    };
    let may_be = match (&failure.meant, found, newest) {
        (Some(meant), _, _) => meant.as_ref() == found,
        // The get may have been done.
        (None, Some(found), Some(newest)) => {
            found.blobs == newest.blobs
                && found.messages.keys().eq(newest.messages.keys())
                && found.messages.iter().all(|(name, (text, gets))| {
                    let (known, before) = &newest.messages[name];
                    known == text && (*before..=before + 1).contains(gets)
                })
        }
        _ => false,
    };
    if may_be { Ok(()) } else { Err(difference(newest, found)) }
}

fn difference(newest: Option<&State>, found: Option<&State>) -> String {
    let (Some(newest), Some(found)) = (newest, found) else {
        return format!(
            "lost: the queue is there: {}, was acknowledged: {}",
            found.is_some(),
            newest.is_some()
        );
    };
    let names = |state: &State| state.messages.keys().cloned().collect::<BTreeSet<_>>();
    let lost: Vec<_> = names(newest).difference(&names(found)).cloned().collect();
    let more: Vec<_> = names(found).difference(&names(newest)).cloned().collect();
    let older: Vec<_> = found
        .messages
        .iter()
        .filter(|(name, value)| newest.messages.get(*name).is_some_and(|known| known != *value))
        .map(|(name, _)| name)
        .collect();
    let blobs = newest.blobs != found.blobs;
    format!("lost: {lost:?}, back or not known: {more:?}, not the newest: {older:?}, other blobs: {blobs}")
}

/// Opens the storage in `folder` with the real library. Returns the reason if it is refused or damaged.
pub(crate) async fn open(folder: &Path, options: Options) -> Result<Storage, String> {
    let storage = Storage::open(options).await.map_err(|error| {
        let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
        format!("refused: {}", causes.map(ToString::to_string).collect::<Vec<_>>().join(": "))
    })?;
    let connection = Connection::open(folder.join("jobs.db")).unwrap();
    let check: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    if check == "ok" { Ok(storage) } else { Err(format!("damaged: {check}")) }
}

/// Returns the content of the file, leased or not, without changing it.
pub(crate) fn look(folder: &Path, tasks: usize) -> Vec<Option<State>> {
    let connection = Connection::open(folder.join("jobs.db")).unwrap();
    (0..tasks).map(|task| look_at(&connection, task)).collect()
}

fn look_at(connection: &Connection, task: usize) -> Option<State> {
    let id: i64 = connection
        .query_row("SELECT id FROM jobqueue_queue WHERE name = ?1", [queue(task).as_str()], |row| row.get(0))
        .ok()?;
    let mut state = State::default();
    let mut messages = connection
        .prepare(
            "SELECT m.text, coalesce(l.dequeue_count, m.dequeue_count)
             FROM jobqueue_message m LEFT JOIN jobqueue_lease l ON l.id = m.id WHERE m.queue = ?1",
        )
        .unwrap();
    for message in messages.query_map([id], |row| Ok((row.get::<_, String>(0)?, row.get(1)?))).unwrap() {
        let (text, gets) = message.unwrap();
        let former = state.messages.insert(name_of(&text).to_owned(), (text, gets));
        assert!(former.is_none(), "a message is there twice");
    }
    let mut blobs = connection
        .prepare(
            "SELECT b.name, b.content FROM jobqueue_blob b JOIN jobqueue_container c ON c.id = b.container
             WHERE c.name = ?1",
        )
        .unwrap();
    let found = blobs.query_map([container(task).as_str()], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    state.blobs = found.collect::<rusqlite::Result<_>>().unwrap();
    Some(state)
}

/// Receives every message like a worker, long after all leases have expired, and compares them with the
/// result of `look`.
pub(crate) async fn deliver(storage: &Storage, clock: &Arc<ManualClock>, found: &[Option<State>]) {
    clock.advance(Duration::from_secs(3600));
    let options = GetMessages::new(32, Duration::from_secs(3600));
    for (task, state) in found.iter().enumerate() {
        let Some(state) = state else { continue };
        let mut delivered = BTreeMap::new();
        loop {
            let messages = storage.queues().get(&queue(task), options).await.unwrap().messages;
            if messages.is_empty() {
                break;
            }
            for message in messages {
                let text = message.text.unwrap();
                delivered.insert(name_of(&text).to_owned(), (text, message.dequeue_count - 1));
            }
        }
        assert_eq!(delivered, state.messages);
    }
}
