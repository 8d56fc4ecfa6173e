//! Proof that the holder of a lease has gone: a locked file beside the database for each lease.
//!
//! The holder creates the file and locks it before it asks for the lease, and keeps it open as long as it may use the
//! lease. The operating system ends the lock when the process has ended, however it ended, and not before: a stopped
//! process keeps it. So a process that gets the lock of a lease's file has proof that the former holder no longer uses
//! the lease. Process ids and host names prove nothing, since both are reused.
//!
//! Without the file, as after it was deleted, nothing is proven, and the lease ends by its time.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::open::file::create;
use jobqueue_storage::LeaseId;
use jobqueue_storage::fast::hex::{read_hex, to_hex};
use jobqueue_storage::log::debug;
use jobqueue_storage::sync::lock;

/// The age from which a file without a holder is removed.
const OLD: Duration = Duration::from_secs(3600);

/// The number of bytes of a lease's digest that are in the name of its file.
const DIGEST: usize = 12;

/// The time after its last acquisition or renewal in which a lease has certainly ended: none lasts longer than a minute.
const ENDED: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub(super) struct Holders {
    database: PathBuf,
    held: Mutex<BTreeMap<PathBuf, Held>>,
}

#[derive(Debug)]
struct Held {
    _file: File,
    since: Instant,
}

/// The file of a lease whose holder has gone. It stays locked until this value is dropped.
#[derive(Debug)]
pub(super) struct Gone {
    path: PathBuf,
    _file: File,
}

impl Gone {
    fn lock(path: PathBuf) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        file.try_lock()?;
        Ok(Self { path, _file: file })
    }

    pub(super) fn remove(self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Holders {
    /// Returns the holders beside a database, and removes files of ended processes.
    pub(super) fn beside(database: &Path) -> Self {
        let holders = Self { database: database.to_owned(), held: Mutex::default() };
        if let Err(error) = holders.remove_old() {
            debug!(%error, "looking for the files of former lease holders failed");
        }
        holders
    }

    /// Records that this process holds `lease`, or is about to. A failure only delays the take-over after a crash. Forgets leases that ran out
    /// without a release.
    pub(super) fn hold(&self, lease: &LeaseId) {
        let path = self.path(lease);
        let since = Instant::now();
        self.forget_ended(since);
        let mut held = lock(&self.held);
        if let Some(held) = held.get_mut(&path) {
            held.since = since;
            return;
        }
        let locked = create(&path).and_then(|file| match file.try_lock() {
            Ok(()) => Ok(file),
            Err(error) => {
                let _ = fs::remove_file(&path);
                Err(error.into())
            }
        });
        match locked {
            Ok(file) => drop(held.insert(path, Held { _file: file, since })),
            Err(error) => debug!(%error, "the file of a lease could not be locked"),
        }
    }

    /// Records that `lease` was renewed.
    pub(super) fn renewed(&self, lease: &LeaseId) {
        if let Some(held) = lock(&self.held).get_mut(&self.path(lease)) {
            held.since = Instant::now();
        }
    }

    fn forget_ended(&self, now: Instant) {
        lock(&self.held).retain(|path, held| {
            let lasts = now.duration_since(held.since) < ENDED;
            if !lasts {
                let _ = fs::remove_file(path);
            }
            lasts
        });
    }

    pub(super) fn let_go(&self, lease: &LeaseId) {
        let path = self.path(lease);
        if let Some(held) = lock(&self.held).remove(&path) {
            let _ = fs::remove_file(&path);
            drop(held);
        }
    }

    /// Returns the file of `lease` if its holder has certainly gone.
    pub(super) fn gone(&self, lease: &LeaseId) -> Option<Gone> {
        Gone::lock(self.path(lease)).ok()
    }

    fn path(&self, lease: &LeaseId) -> PathBuf {
        // The id is a secret; a digest does not reveal it.
        let mut name = self.prefix();
        name.push(to_hex(&Sha256::digest(lease.expose())[..DIGEST]));
        self.database.with_file_name(name)
    }

    fn prefix(&self) -> OsString {
        let mut name = self.database.file_name().unwrap_or_default().to_owned();
        name.push("-lease-");
        name
    }

    fn remove_old(&self) -> io::Result<()> {
        let prefix = self.prefix();
        for entry in fs::read_dir(self.database.parent().unwrap_or(Path::new("/")))? {
            let entry = entry?;
            let name = entry.file_name();
            let digits = name.as_encoded_bytes().strip_prefix(prefix.as_encoded_bytes());
            // A copy of the database may have a name that begins like that of a lease.
            let is_lease = digits.and_then(read_hex::<DIGEST>).is_some();
            let is_old = || entry.metadata()?.modified()?.elapsed().map_err(io::Error::other);
            if is_lease
                && is_old().is_ok_and(|age| age > OLD)
                && let Ok(gone) = Gone::lock(entry.path())
            {
                gone.remove();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jobqueue_storage::runtime::Runtime;

    fn files(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn only_who_is_gone_can_be_proven_gone() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("jobs.db");
        let (one, other) = (Holders::beside(&database), Holders::beside(&database));
        let lease = LeaseId::random(&Runtime::new());
        assert!(other.gone(&lease).is_none(), "nothing is known");
        one.hold(&lease);
        one.hold(&lease);
        assert!(other.gone(&lease).is_none() && one.gone(&lease).is_none());
        drop(one);
        let gone = other.gone(&lease).unwrap();
        assert!(other.gone(&lease).is_none(), "one successor at a time");
        gone.remove();
        assert_eq!(files(folder.path()), 0);
    }

    #[test]
    fn files_are_removed_when_their_leases_have_run_out() {
        let folder = tempfile::tempdir().unwrap();
        let holders = Holders::beside(&folder.path().join("jobs.db"));
        let (ended, renewed) = (LeaseId::random(&Runtime::new()), LeaseId::random(&Runtime::new()));
        let begun = Instant::now();
        holders.hold(&ended);
        holders.hold(&renewed);
        lock(&holders.held).values_mut().for_each(|held| held.since = begun);
        lock(&holders.held).get_mut(&holders.path(&renewed)).unwrap().since = begun + ENDED;
        holders.forget_ended(begun + ENDED);
        assert!(holders.path(&renewed).exists() && !holders.path(&ended).exists());
    }

    #[test]
    fn files_are_removed_with_their_leases_and_when_old() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("jobs.db");
        let (lives, crashed, fresh) = (
            LeaseId::random(&Runtime::new()),
            LeaseId::random(&Runtime::new()),
            LeaseId::random(&Runtime::new()),
        );
        let holders = Holders::beside(&database);
        holders.hold(&lives);
        let died = Holders::beside(&database);
        died.hold(&crashed);
        died.hold(&fresh);
        let long_ago = std::time::SystemTime::now() - OLD * 2;
        let copies = ["jobs.db-lease-incident.db", "jobs.db-lease-"].map(|name| folder.path().join(name));
        for copy in &copies {
            drop(create(copy).unwrap());
        }
        let leases = [&lives, &crashed].map(|lease| holders.path(lease));
        for path in leases.iter().chain(&copies) {
            File::open(path).unwrap().set_modified(long_ago).unwrap();
        }
        drop(died);
        let later = Holders::beside(&database);
        for copy in copies {
            fs::remove_file(copy).expect("a file with another name stays");
        }
        assert_eq!(files(folder.path()), 2);
        assert!(later.gone(&fresh).is_some() && later.gone(&lives).is_none());
        holders.let_go(&lives);
        assert_eq!(files(folder.path()), 1);
    }
}
