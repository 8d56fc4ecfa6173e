//! The outbox: a folder for each mailing, with one file for each recipient.

use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use rand::RngExt;
use tempfile::NamedTempFile;
use tokio::task::spawn_blocking;
use uuid::Uuid;

use crate::letter::Letter;

/// Accepts each mail once, however often it is given.
#[derive(Debug, Clone)]
pub(crate) struct Outbox {
    folder: PathBuf,
    /// The percentage of deliveries that fail on purpose.
    faults: u8,
}

impl Outbox {
    pub(crate) fn open(folder: &Path, faults: u8) -> io::Result<Self> {
        let outbox = Self { folder: folder.to_owned(), faults };
        make_folder(&outbox.unfinished())?;
        Ok(outbox)
    }

    /// Returns the folder of a mailing's mails.
    pub(crate) fn folder(&self, mailing: Uuid) -> PathBuf {
        self.folder.join(mailing.to_string())
    }

    /// Returns the folder of files that are being written. A file that a killed process leaves there is not a
    /// mail.
    fn unfinished(&self) -> PathBuf {
        self.folder.join("unfinished")
    }

    /// Writes the mail, unless it was written before.
    pub(crate) async fn put(&self, letter: Letter) -> io::Result<()> {
        let outbox = self.clone();
        spawn_blocking(move || outbox.put_now(&letter)).await?
    }

    fn put_now(&self, letter: &Letter) -> io::Result<()> {
        let folder = self.folder(letter.mailing);
        let mail = folder.join(format!("{:04}.eml", letter.recipient + 1));
        // This only saves work: two processes may check at once. The rename below prevents doubled mails.
        if mail.exists() {
            return Ok(());
        }
        let fault = self.fault();
        if fault == Some(Fault::Before) {
            return Err(out_of_order());
        }
        make_folder(&folder)?;
        let mut file = NamedTempFile::new_in(self.unfinished())?;
        file.write_all(&letter.to_eml()?)?;
        file.as_file().sync_all()?;
        // The file appears completely or not at all; of two equal ones only the first appears.
        match file.persist_noclobber(&mail) {
            Err(error) if error.error.kind() != ErrorKind::AlreadyExists => return Err(error.error),
            _ => {}
        }
        if fault == Some(Fault::After) { Err(out_of_order()) } else { Ok(()) }
    }

    /// Returns the number of mails in these mailings.
    pub(crate) fn count(&self, mailings: &[Uuid]) -> io::Result<u64> {
        let mut count = 0;
        for mailing in mailings {
            match std::fs::read_dir(self.folder(*mailing)) {
                Ok(mails) => count += mails.count() as u64,
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    }

    fn fault(&self) -> Option<Fault> {
        let mut random = rand::rng();
        let fails = random.random_range(0..100) < self.faults;
        fails.then(|| if random.random() { Fault::Before } else { Fault::After })
    }
}

/// A planned fault: a mail server may fail before it has accepted the mail, or afterwards, before it says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Before,
    After,
}

fn out_of_order() -> io::Error {
    io::Error::other("the outbox is out of order for a moment (made up; see --faults)")
}

fn make_folder(folder: &Path) -> io::Result<()> {
    let told = |error: io::Error| {
        io::Error::new(error.kind(), format!("the folder {} cannot be made: {error}", folder.display()))
    };
    std::fs::create_dir_all(folder).map_err(told)
}
