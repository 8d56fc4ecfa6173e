//! The log of SQLite's operations on the files of one folder, and planned faults.

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_int;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::SystemTime;

use rusqlite::ffi::{SQLITE_FULL, SQLITE_IOERR_FSYNC, SQLITE_IOERR_SHMSIZE, SQLITE_OK};

use super::disk::Disk;
use super::vfs;

/// An event in the folder. Files are identified by their names.
#[derive(Debug, Clone)]
pub enum Event {
    /// An empty file was created.
    Create(String),
    /// Bytes were written to a file at an offset.
    Write(String, u64, Arc<[u8]>),
    /// A file was cut to a size.
    Truncate(String, u64),
    /// A file was synced and, if true, the entries of the folder too.
    Sync(String, bool),
    /// The system failed to sync a file, and from then on treats its unwritten data as written.
    SyncFailed(String),
    /// A file was deleted and, if true, the entries of the folder were synced.
    Delete(String, bool),
    /// The test reported a step.
    Note(Note),
}

/// A test's note of its own steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// The task (first number) began its step (second number).
    Began(usize, usize),
    /// The storage acknowledged the step of the task.
    Acknowledged(usize, usize),
}

/// Records the operations in one folder.
#[derive(Debug)]
pub struct Recorder {
    folder: PathBuf,
    before: Disk,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    events: Vec<Event>,
    sizes: BTreeMap<String, u64>,
    /// The suffix of the names of files whose sync fails, and the number of syncs that succeed before.
    failing: Option<(String, usize)>,
    /// The maximum size of all files together.
    room: Option<u64>,
    /// True if the index of the log may not grow.
    no_room_for_index: bool,
    /// The number of planned faults that have occurred.
    struck: usize,
}

static FOLDERS: Mutex<Option<HashMap<PathBuf, Weak<Recorder>>>> = Mutex::new(None);

impl Recorder {
    /// Records `folder` from now on. Its present content is durable, so that a power cut does not affect it.
    ///
    /// # Panics
    /// If the folder cannot be read.
    pub fn watch(folder: &Path) -> Arc<Self> {
        Self::watch_on(folder, Disk::of(folder))
    }

    /// Records `folder`, which has the content of the cache of `disk`, after a process was killed.
    ///
    /// # Panics
    /// If the folder cannot be read.
    pub fn watch_on(folder: &Path, disk: Disk) -> Arc<Self> {
        vfs::install();
        let folder = folder.canonicalize().expect("the folder");
        let recorder = Arc::new(Self {
            folder: folder.clone(),
            state: Mutex::new(State { sizes: disk.sizes(), ..State::default() }),
            before: disk.clone(),
        });
        disk.sizes().keys().for_each(|name| recorder.mark(name));
        let mut folders = FOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
        folders.get_or_insert_default().insert(folder, Arc::downgrade(&recorder));
        recorder
    }

    /// Returns the recorder of the folder of `file`.
    pub(super) fn of(file: &Path) -> Option<Arc<Self>> {
        let folders = FOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
        folders.as_ref()?.get(file.parent()?)?.upgrade()
    }

    /// Adds a note of the test to the log.
    pub fn note(&self, note: Note) {
        self.state().events.push(Event::Note(note));
    }

    /// Returns the disk at the beginning, and the events since then.
    pub fn log(&self) -> (Disk, Vec<Event>) {
        (self.before.clone(), self.state().events.clone())
    }

    /// Makes one sync of a file with this suffix fail, after `after` successful syncs.
    pub fn fail_sync(&self, suffix: &str, after: usize) {
        self.state().failing = Some((suffix.to_owned(), after));
    }

    /// Limits the growth of all files together to `bytes` from now on. `None` removes the limit.
    pub fn leave_room(&self, bytes: Option<u64>) {
        let mut state = self.state();
        state.room = bytes.map(|bytes| bytes + state.sizes.values().sum::<u64>());
    }

    /// Sets whether the index of the log, which [`leave_room`](Self::leave_room) does not count, has no room
    /// to grow.
    pub fn leave_no_room_for_index(&self, none: bool) {
        self.state().no_room_for_index = none;
    }

    /// Returns the number of planned faults that have occurred.
    pub fn struck(&self) -> usize {
        self.state().struck
    }

    // Each of the following methods holds the lock during the system call, so that the log has the order of
    // the system.

    pub(super) fn open(&self, name: &str, open: impl FnOnce() -> c_int) -> c_int {
        let mut state = self.state();
        let code = open();
        if code == SQLITE_OK && !state.sizes.contains_key(name) {
            state.sizes.insert(name.to_owned(), 0);
            state.events.push(Event::Create(name.to_owned()));
            self.mark(name);
        }
        code
    }

    pub(super) fn delete(&self, name: &str, folder: bool, delete: impl FnOnce() -> c_int) -> c_int {
        let mut state = self.state();
        let code = delete();
        if code == SQLITE_OK && state.sizes.remove(name).is_some() {
            state.events.push(Event::Delete(name.to_owned(), folder));
        }
        code
    }

    pub(super) fn write(
        &self,
        name: &str,
        offset: u64,
        bytes: &[u8],
        write: impl FnOnce(&[u8]) -> c_int,
    ) -> c_int {
        let mut state = self.state();
        self.notice(&mut state, name);
        let all: u64 = state.sizes.values().sum();
        let size = state.sizes.get(name).copied().unwrap_or(0);
        let growth = (offset + bytes.len() as u64).saturating_sub(size);
        let fits = match state.room {
            Some(room) if all + growth > room => {
                state.struck += 1;
                let missing = usize::try_from(all + growth - room).unwrap_or(usize::MAX);
                bytes.len().saturating_sub(missing)
            }
            _ => bytes.len(),
        };
        if fits > 0 {
            let code = write(&bytes[..fits]);
            if code != SQLITE_OK {
                return code;
            }
            let end = offset + fits as u64;
            state.sizes.insert(name.to_owned(), size.max(end));
            state.events.push(Event::Write(name.to_owned(), offset, bytes[..fits].into()));
            self.mark(name);
        }
        if fits < bytes.len() { SQLITE_FULL } else { SQLITE_OK }
    }

    pub(super) fn grow_index(&self, grow: impl FnOnce() -> c_int) -> c_int {
        let mut state = self.state();
        if state.no_room_for_index {
            state.struck += 1;
            return SQLITE_IOERR_SHMSIZE;
        }
        drop(state);
        grow()
    }

    pub(super) fn truncate(&self, name: &str, size: u64, truncate: impl FnOnce() -> c_int) -> c_int {
        let mut state = self.state();
        self.notice(&mut state, name);
        let code = truncate();
        if code == SQLITE_OK {
            self.mark(name);
            state.sizes.insert(name.to_owned(), size);
            state.events.push(Event::Truncate(name.to_owned(), size));
        }
        code
    }

    pub(super) fn sync(&self, name: &str, folder: bool, sync: impl FnOnce() -> c_int) -> c_int {
        let mut state = self.state();
        self.notice(&mut state, name);
        match &mut state.failing {
            Some((suffix, 0)) if name.ends_with(&**suffix) => {
                state.failing = None;
                state.struck += 1;
                state.events.push(Event::SyncFailed(name.to_owned()));
                return SQLITE_IOERR_FSYNC;
            }
            Some((suffix, after)) if name.ends_with(&**suffix) => *after -= 1,
            _ => {}
        }
        let code = sync();
        if code == SQLITE_OK {
            state.events.push(Event::Sync(name.to_owned(), folder));
        }
        code
    }

    /// Records data that was written to a log without SQLite, which the modification time of the log reveals.
    fn notice(&self, state: &mut State, name: &str) {
        let file = self.folder.join(name);
        let changed = file.metadata().and_then(|metadata| metadata.modified());
        if name.ends_with("-wal") && changed.is_ok_and(|time| time != SystemTime::UNIX_EPOCH) {
            let content = fs::read(&file).expect("the log");
            state.events.push(Event::Write(name.to_owned(), 0, content.into()));
            self.mark(name);
        }
    }

    /// Sets the modification time, so that the next change is noticed.
    fn mark(&self, name: &str) {
        if name.ends_with("-wal") {
            let file = File::options().write(true).open(self.folder.join(name)).expect("the log");
            file.set_modified(SystemTime::UNIX_EPOCH).expect("its time");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
