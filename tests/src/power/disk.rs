//! A folder on a disk with a cache, that is, with durable data and data that is not durable yet.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::SECTOR;
use super::recorder::Event;

/// The files of a folder, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image(BTreeMap<String, Vec<u8>>);

impl Image {
    /// Writes the files into `folder`.
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn write(&self, folder: &Path) {
        for (name, content) in &self.0 {
            fs::write(folder.join(name), content).expect("a file of the image");
        }
    }
}

/// The state of a folder on a disk and in the cache of the system.
#[derive(Debug, Clone)]
pub struct Disk {
    files: Vec<File>,
    /// The entries of the folder as processes see them, by index into `files`.
    entries: BTreeMap<String, usize>,
    durable_entries: BTreeMap<String, usize>,
    pending_entries: Vec<(String, Option<usize>)>,
    /// True if the disk acknowledges syncs without syncing.
    lies: bool,
    /// The seed that chooses which part of its data a failed sync has written.
    seed: u64,
}

#[derive(Debug, Clone, Default)]
struct File {
    durable: Vec<u8>,
    cached: Vec<u8>,
    pending: Vec<Change>,
}

#[derive(Debug, Clone)]
enum Change {
    Write(u64, Arc<[u8]>),
    Truncate(u64),
}

impl Disk {
    /// Returns a disk with the files of `folder`, all of them durable.
    ///
    /// # Panics
    /// If they cannot be read.
    pub fn of(folder: &Path) -> Self {
        let files = fs::read_dir(folder).expect("the folder").filter_map(|entry| {
            let entry = entry.expect("an entry");
            let name = entry.file_name().to_string_lossy().into_owned();
            // This file is shared memory that has a name.
            (!name.ends_with("-shm")).then(|| (name, fs::read(entry.path()).expect("a file")))
        });
        Self::holding(Image(files.collect()))
    }

    /// Returns a disk with the files of the image, all of them durable.
    pub fn holding(image: Image) -> Self {
        let entries: BTreeMap<_, _> = image.0.keys().cloned().zip(0..).collect();
        let files = image.0.into_values();
        Self {
            files: files
                .map(|content| File { cached: content.clone(), durable: content, pending: vec![] })
                .collect(),
            durable_entries: entries.clone(),
            entries,
            pending_entries: vec![],
            lies: false,
            seed: 0,
        }
    }

    /// From now on, acknowledges syncs without syncing.
    pub fn lie(&mut self) {
        self.lies = true;
    }

    /// Sets the seed that chooses which part of its data a failed sync writes.
    pub fn seed(&mut self, seed: u64) {
        self.seed = seed;
    }

    /// Returns the sizes of the files as processes see them.
    pub fn sizes(&self) -> BTreeMap<String, u64> {
        let size = |file: &usize| self.files[*file].cached.len() as u64;
        self.entries.iter().map(|(name, file)| (name.clone(), size(file))).collect()
    }

    /// Applies an event to the state.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Create(name) => {
                self.files.push(File::default());
                self.enter(name, Some(self.files.len() - 1));
            }
            Event::Delete(name, folder) => {
                self.enter(name, None);
                if *folder {
                    self.sync_folder();
                }
            }
            Event::Write(name, offset, bytes) => self.change(name, Change::Write(*offset, Arc::clone(bytes))),
            Event::Truncate(name, size) => self.change(name, Change::Truncate(*size)),
            Event::Sync(name, folder) if !self.lies => {
                let file = &mut self.files[self.entries[name]];
                for change in file.pending.drain(..) {
                    change.apply(&mut file.durable);
                }
                if *folder {
                    self.sync_folder();
                }
            }
            Event::SyncFailed(name) => {
                let mut random = StdRng::seed_from_u64(self.seed);
                let file = &mut self.files[self.entries[name]];
                for change in std::mem::take(&mut file.pending) {
                    change.apply_partly(&mut file.durable, 0.5, &mut random);
                }
            }
            Event::Sync(..) | Event::Note(_) => {}
        }
    }

    /// Returns the files after a power cut now: any part of the unsynced writes may have been written.
    pub fn cut(&self, random: &mut StdRng) -> Image {
        let share = *[0.0, 0.1, 0.5, 0.9, 1.0].get(random.random_range(0..5)).expect("one of five");
        let mut entries = self.durable_entries.clone();
        for (name, file) in &self.pending_entries {
            if random.random_bool(share) {
                set(&mut entries, name, *file);
            }
        }
        let content = |file: usize, random: &mut StdRng| {
            let file = &self.files[file];
            let mut content = file.durable.clone();
            for change in &file.pending {
                change.apply_partly(&mut content, share, random);
            }
            content
        };
        Image(entries.into_iter().map(|(name, file)| (name, content(file, random))).collect())
    }

    /// Returns the files after the process was killed now: all its writes, synced or not.
    pub fn seen(&self) -> Image {
        Image(
            self.entries
                .iter()
                .map(|(name, file)| (name.clone(), self.files[*file].cached.clone()))
                .collect(),
        )
    }

    fn enter(&mut self, name: &str, file: Option<usize>) {
        set(&mut self.entries, name, file);
        self.pending_entries.push((name.to_owned(), file));
    }

    fn sync_folder(&mut self) {
        if !self.lies {
            self.durable_entries = self.entries.clone();
            self.pending_entries.clear();
        }
    }

    fn change(&mut self, name: &str, change: Change) {
        let file = &mut self.files[self.entries[name]];
        change.apply(&mut file.cached);
        file.pending.push(change);
    }
}

fn set(entries: &mut BTreeMap<String, usize>, name: &str, file: Option<usize>) {
    match file {
        Some(file) => drop(entries.insert(name.to_owned(), file)),
        None => drop(entries.remove(name)),
    }
}

impl Change {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::Write(offset, bytes) => write(content, *offset, bytes),
            Self::Truncate(size) => content.resize(index(*size), 0),
        }
    }

    /// Applies each sector with probability `share`, independently of the others.
    fn apply_partly(&self, content: &mut Vec<u8>, share: f64, random: &mut StdRng) {
        match self {
            Self::Truncate(_) if random.random_bool(share) => self.apply(content),
            Self::Truncate(_) => {}
            Self::Write(offset, bytes) => {
                let (mut at, mut rest) = (*offset, &bytes[..]);
                while !rest.is_empty() {
                    let size = index(SECTOR - at % SECTOR).min(rest.len());
                    if random.random_bool(share) {
                        write(content, at, &rest[..size]);
                    }
                    at += size as u64;
                    rest = &rest[size..];
                }
            }
        }
    }
}

fn write(content: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let (from, to) = (index(offset), index(offset) + bytes.len());
    if content.len() < to {
        content.resize(to, 0);
    }
    content[from..to].copy_from_slice(bytes);
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("the images are held in memory")
}
