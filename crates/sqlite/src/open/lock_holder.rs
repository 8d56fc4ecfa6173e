//! Names the process that holds SQLite's write lock, for errors.
//!
//! SQLite does not say which connection holds a lock. Linux lists the locks of all processes that this one
//! can see. The locked file is only looked at by its path: closing a descriptor of it would end the locks of
//! this process.

use std::path::{Path, PathBuf};

use super::platform;

/// The byte of the file `-shm` that SQLite locks while a connection writes: `WAL_WRITE_LOCK` in its source.
#[cfg(target_os = "linux")]
const WRITE_LOCK_BYTE: &str = "120";

/// Returns who holds the write lock of the store in `file`, as far as can be known, and what to do.
pub(super) fn describe(file: &Path) -> String {
    let index = index_of(file);
    let Some(process) = process(&index) else {
        return format!(
            "another process or transaction holds the write lock; end its transaction (COMMIT or ROLLBACK), or the \
             process (`lsof` lists those that have {} open); if the transaction is of this program, send within \
             it by `in_sqlite`",
            index.display()
        );
    };
    if process == std::process::id() {
        return format!(
            "another transaction or store of this process ({process}) holds the write lock; send within that \
             transaction by `in_sqlite`, or end it first"
        );
    }
    let name = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    let name = match name.trim_end() {
        "" => String::new(),
        name => format!(" (`{}`)", name.escape_debug()),
    };
    format!(
        "process {process}{name} holds the write lock; end its transaction (COMMIT or ROLLBACK), or the process"
    )
}

/// Returns the path of the index of the write-ahead log, which has the locks.
fn index_of(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push("-shm");
    name.into()
}

/// Returns the id of the process that has locked the byte of writers in the file at `index`, if it can be
/// known.
#[cfg(target_os = "linux")]
fn process(index: &Path) -> Option<u32> {
    let (device, inode) = platform::identity(index)?;
    let place = format!("{:02x}:{:02x}:{inode}", device >> 32, device & 0xffff_ffff);
    std::fs::read_to_string("/proc/locks").ok()?.lines().find_map(|line| {
        // As in `1: POSIX  ADVISORY  WRITE 4711 fe:00:261 120 120`; a process that waits has `->` before it.
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "POSIX", _, "WRITE", process, at, WRITE_LOCK_BYTE, WRITE_LOCK_BYTE] = fields[..] else {
            return None;
        };
        // A process that cannot be seen, such as that of another container, has the id zero.
        process.parse().ok().filter(|process| *process > 0 && at == place)
    })
}

#[cfg(not(target_os = "linux"))]
fn process(_: &Path) -> Option<u32> {
    None
}
