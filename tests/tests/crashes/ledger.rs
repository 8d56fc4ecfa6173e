//! The book of a process: what it did, entry by entry. A kill takes nothing from the kernel, so that no entry
//! needs a sync.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

/// An event of a job.
#[derive(Debug)]
pub struct Entry {
    pub at: u128,
    pub process: String,
    pub what: String,
    pub number: u32,
    pub job: String,
}

/// The book of one process.
pub struct Ledger(Mutex<File>);

impl Ledger {
    pub fn open(folder: &Path, process: &str) -> Self {
        let path = folder.join(format!("{}.ledger", process.replace(':', "-")));
        Self(Mutex::new(OpenOptions::new().append(true).create(true).open(path).unwrap()))
    }

    /// Returns after the entry was written.
    pub fn note(&self, what: &str, number: u32, job: &str) {
        let mut file = self.0.lock().unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        file.write_all(format!("{now} {what} {number} {job}\n").as_bytes()).unwrap();
    }
}

/// Returns all entries of all books in order of time. A last line that a kill has cut off is not an entry.
pub fn read_all(folder: &Path) -> Vec<Entry> {
    let mut entries = Vec::new();
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.extension().is_none_or(|extension| extension != "ledger") {
            continue;
        }
        let process = path.file_stem().unwrap().to_string_lossy();
        let text = fs::read_to_string(&path).unwrap();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        entries.extend(whole.lines().map(|line| entry(&process, line)));
    }
    entries.sort_by_key(|entry| entry.at);
    entries
}

fn entry(process: &str, line: &str) -> Entry {
    let mut words = line.splitn(4, ' ');
    let mut word = || words.next().unwrap();
    let (at, what, number) = (word().parse().unwrap(), word().to_owned(), word().parse().unwrap());
    Entry { at, process: process.to_owned(), what, number, job: word().to_owned() }
}
