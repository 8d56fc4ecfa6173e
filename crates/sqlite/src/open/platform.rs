//! Wraps functions of the operating system: where a file lies, who may write to its folder, and when it
//! changes.

use std::io;
use std::path::Path;

pub(crate) use changes::{Changes, Stopper, watch};

/// The kind of file system that holds a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FileSystem {
    /// A disk of this machine, as far as can be known.
    Local,
    /// Memory: the content is lost when the machine restarts.
    Memory,
    /// Another machine, or a driver whose locks and shared memory are unreliable.
    Network(&'static str),
}

/// Returns the free bytes on the volume of `folder`, if they can be known.
pub(crate) fn free_bytes(folder: &Path) -> Option<u64> {
    #[cfg(unix)]
    {
        let found = rustix::fs::statvfs(folder).ok()?;
        Some(found.f_bavail.saturating_mul(found.f_frsize))
    }
    #[cfg(not(unix))]
    {
        let _ = folder;
        None
    }
}

/// The numbers that distinguish a file from all others on this machine, whatever its name.
pub(super) type Identity = (u64, u64);

/// Returns the identity of the file at `path`, if it can be known.
pub(super) fn identity(path: &Path) -> Option<Identity> {
    // This runs after every commit, so it requests only the inode number. A request for a file's times makes
    // newer kernels record its next change precisely, which makes the next sync half as slow again.
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
        let found = statx(CWD, path, AtFlags::empty(), StatxFlags::INO).ok()?;
        let device = u64::from(found.stx_dev_major) << 32 | u64::from(found.stx_dev_minor);
        Some((device, found.stx_ino))
    }
    #[cfg(all(unix, not(target_os = "linux")))]
    {
        use std::os::unix::fs::MetadataExt;
        path.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()))
    }
    // Windows does not allow the deletion of an open file.
    #[cfg(not(unix))]
    {
        let _ = path;
        None
    }
}

/// Returns whether any user of the machine may create files in this folder. The sticky bit does not help: it
/// only keeps users from removing files of others.
pub(super) fn is_open_to_all(folder: &std::fs::Metadata) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        folder.permissions().mode() & 0o002 != 0
    }
    #[cfg(not(unix))]
    {
        let _ = folder;
        false
    }
}

/// Returns the kind of file system that holds `folder`.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn file_system(folder: &Path) -> io::Result<FileSystem> {
    let magic = u32::try_from(rustix::fs::statfs(folder)?.f_type & 0xffff_ffff).unwrap_or_default();
    Ok(by_magic(magic))
}

/// Maps the file-system numbers of statfs(2).
#[cfg(any(target_os = "linux", target_os = "android"))]
fn by_magic(magic: u32) -> FileSystem {
    match magic {
        0x6969 => FileSystem::Network("NFS"),
        0x517b | 0xff53_4d42 | 0xfe53_4d42 => FileSystem::Network("SMB"),
        0x0102_1997 => FileSystem::Network("9p"),
        0x6573_5546 => FileSystem::Network("FUSE (sshfs, virtiofs and the like)"),
        0x00c3_6400 => FileSystem::Network("Ceph"),
        0x5346_414f | 0x6b41_4653 => FileSystem::Network("AFS"),
        0x7375_7245 => FileSystem::Network("Coda"),
        0x0bd0_0bd0 => FileSystem::Network("Lustre"),
        0x4750_4653 => FileSystem::Network("GPFS"),
        0x0116_1970 => FileSystem::Network("GFS2"),
        0x7461_636f => FileSystem::Network("OCFS2"),
        0x786f_4256 => FileSystem::Network("VirtualBox shared folders"),
        0xbacb_acbc => FileSystem::Network("VMware shared folders"),
        0x0102_1994 | 0x8584_58f6 => FileSystem::Memory,
        _ => FileSystem::Local,
    }
}

#[cfg(target_vendor = "apple")]
pub(super) fn file_system(folder: &Path) -> io::Result<FileSystem> {
    const MNT_LOCAL: u32 = 0x1000;
    let local = rustix::fs::statfs(folder)?.f_flags & MNT_LOCAL != 0;
    Ok(if local { FileSystem::Local } else { FileSystem::Network("a network volume") })
}

/// Returns the kind of file system that holds `folder`. A path that names a server is on a network; mapped
/// drives cannot be distinguished from disks.
#[cfg(windows)]
pub(super) fn file_system(folder: &Path) -> io::Result<FileSystem> {
    use std::path::{Component, Prefix};
    Ok(match folder.components().next() {
        Some(Component::Prefix(prefix)) => match prefix.kind() {
            Prefix::UNC(..) | Prefix::VerbatimUNC(..) => FileSystem::Network("SMB"),
            _ => FileSystem::Local,
        },
        _ => FileSystem::Local,
    })
}

// The kind cannot be known here.
#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple", windows)))]
pub(super) fn file_system(_folder: &Path) -> io::Result<FileSystem> {
    Ok(FileSystem::Local)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod changes {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use jobqueue_storage::log::debug;
    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
    use rustix::fd::OwnedFd;
    use rustix::fs::inotify;

    /// The pauses between checks after a change, in milliseconds. The file system reports a write before its
    /// commit counts, because the sync comes in between. So the watcher checks several times, less and less
    /// often.
    const PAUSES_AFTER_CHANGE: &[u64] = &[1, 2, 2, 4, 8, 16, 32, 64];

    /// The longest of these pauses that is slept through, whatever changes; longer pauses end at the next
    /// change.
    const LONGEST_SLEEP_MS: u64 = 2;
    /// The pause after a change among many, so that checking does not slow down a process that is busy.
    const BUSY_PAUSE: Duration = Duration::from_millis(5);
    /// The number of successive checks that found a new change, from which changes count as many.
    const BUSY_CHECKS: u32 = 8;
    /// The pause when nothing changes: a safety net if the system reports changes, and otherwise the polling
    /// period.
    const SAFETY_NET_PAUSE: Duration = Duration::from_millis(500);
    const POLL_PERIOD: Duration = Duration::from_millis(15);

    /// Decides when to check the file again.
    pub(crate) struct Changes {
        stop: Arc<OwnedFd>,
        events: Option<OwnedFd>,
        /// The index into [`PAUSES_AFTER_CHANGE`].
        step: usize,
        /// The number of successive checks that found a new change.
        busy_checks: u32,
    }

    /// Ends all waits of a [`Changes`].
    pub(crate) struct Stopper(Arc<OwnedFd>);

    impl Stopper {
        pub(crate) fn stop(&self) {
            // The write fails only if the counter is full, and then the other side wakes anyway.
            let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
        }
    }

    /// Watches the write-ahead log at `log`, by its path: opening it would disturb SQLite's locks.
    pub(crate) fn watch(log: &Path) -> std::io::Result<(Changes, Stopper)> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let events = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)
            .and_then(|watch| inotify::add_watch(&watch, log, inotify::WatchFlags::MODIFY).map(|_| watch))
            .inspect_err(|error| debug!(%error, "no file changes are reported; polling instead"))
            .ok();
        Ok((
            Changes { stop: Arc::clone(&stop), events, step: PAUSES_AFTER_CHANGE.len(), busy_checks: 0 },
            Stopper(stop),
        ))
    }

    impl Changes {
        /// Waits until the next check is due. Returns true if the wait was stopped.
        pub(crate) fn wait(&mut self) -> bool {
            let is_stopped = match PAUSES_AFTER_CHANGE.get(self.step) {
                _ if self.events.is_none() => return self.poll(POLL_PERIOD, false),
                Some(_) if self.busy_checks >= BUSY_CHECKS => self.poll(BUSY_PAUSE, false),
                // Short enough that a busy log wakes the thread once for many changes.
                Some(&pause) => self.poll(Duration::from_millis(pause), pause > LONGEST_SLEEP_MS),
                None => self.poll(SAFETY_NET_PAUSE, true),
            };
            self.step = (self.step + 1).min(PAUSES_AFTER_CHANGE.len());
            if self.take_events() {
                self.step = 0;
                self.busy_checks = self.busy_checks.saturating_add(1);
            } else {
                self.busy_checks = 0;
            }
            is_stopped
        }

        fn poll(&self, time: Duration, until_change: bool) -> bool {
            let timeout =
                Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() };
            let events = self.events.as_ref().filter(|_| until_change).unwrap_or(&self.stop);
            let mut ends = [&*self.stop, events].map(|end| PollFd::new(end, PollFlags::IN));
            let _ = poll(&mut ends, Some(&timeout));
            ends[0].revents().contains(PollFlags::IN)
        }

        fn take_events(&self) -> bool {
            let mut buffer = [0_u8; 4096];
            let mut any = false;
            while let Some(events) = &self.events
                && rustix::io::read(events, &mut buffer).is_ok_and(|bytes| bytes > 0)
            {
                any = true;
            }
            any
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod changes {
    use std::path::Path;
    use std::sync::mpsc;
    use std::time::Duration;

    /// The polling period.
    const POLL_PERIOD: Duration = Duration::from_millis(15);

    /// Decides when to check the file again.
    pub(crate) struct Changes(mpsc::Receiver<()>);

    /// Ends all waits of a [`Changes`].
    pub(crate) struct Stopper(mpsc::Sender<()>);

    impl Stopper {
        pub(crate) fn stop(&self) {
            let _ = self.0.send(());
        }
    }

    /// Polls at a fixed period, since this module uses no change reports of this system.
    pub(crate) fn watch(_log: &Path) -> std::io::Result<(Changes, Stopper)> {
        let (stopper, changes) = mpsc::channel();
        Ok((Changes(changes), Stopper(stopper)))
    }

    impl Changes {
        /// Waits until the next check is due. Returns true if the wait was stopped.
        pub(crate) fn wait(&mut self) -> bool {
            !matches!(self.0.recv_timeout(POLL_PERIOD), Err(mpsc::RecvTimeoutError::Timeout))
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_known_by_their_numbers() {
        for magic in [0x6969, 0xff53_4d42, 0xfe53_4d42, 0x0102_1997, 0x6573_5546] {
            assert!(matches!(by_magic(magic), FileSystem::Network(_)), "{magic:x}");
        }
        assert_eq!(by_magic(0x0102_1994), FileSystem::Memory);
        for ext4_btrfs_xfs in [0xef53, 0x9123_683e, 0x5846_5342] {
            assert_eq!(by_magic(ext4_btrfs_xfs), FileSystem::Local);
        }
    }
}
