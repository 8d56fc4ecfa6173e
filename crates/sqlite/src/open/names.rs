//! Refuses a file that has a second name.
//!
//! SQLite derives the names of the log and of its index, which holds the locks, from the name of the file. A
//! file with two names has two logs, and its processes do not see each other's locks: each copies its log
//! over the commits of the other. The second name may be in this folder or elsewhere in the file system (a
//! hard link), or the file itself is mounted at another place (as a container's volume may be).

use std::path::Path;

use super::file::refuse;
use crate::error::Cause;

/// Checks that the name of `file`, whose folder is resolved, is its only name.
///
/// A link made while the file is open does no harm until a program opens it, which this check refuses; open
/// stores do not look for new links.
pub(super) fn check(file: &Path) -> Result<(), Cause> {
    let links = links(file);
    if links > 1 {
        return Err(refuse(format!(
            "the file has {links} names (hard links), and SQLite would keep a log and locks for each, which loses what was \
             written under the other one; stop all programs that use it and remove the other names \
             (`find … -samefile {}`)",
            file.display()
        )));
    }
    if is_mounted(file) {
        return Err(refuse(
            "the file itself is mounted here, apart from its folder, and SQLite would keep its log and locks in this folder, where \
             no other program that uses the file finds them; mount the folder that holds the file instead",
        ));
    }
    Ok(())
}

/// Returns the number of names of the file in its file system; 1 if it cannot be known.
fn links(file: &Path) -> u64 {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        file.symlink_metadata().map_or(1, |metadata| metadata.nlink())
    }
    // The standard library has no link count on other platforms.
    #[cfg(not(unix))]
    {
        let _ = file;
        1
    }
}

/// Returns whether the file itself is a mount point, if the system reports it.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn is_mounted(file: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
    let attribute = statx(CWD, file, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::INO).ok().and_then(|found| {
        let is_known = found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT);
        is_known.then(|| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    });
    // Kernels before 5.8 and some sandboxes do not set the attribute. Device numbers do not help: an overlay
    // and its files have different numbers.
    attribute.unwrap_or_else(|| {
        std::fs::read("/proc/self/mountinfo").is_ok_and(|mounts| mounts_have(&mounts, file))
    })
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn is_mounted(_file: &Path) -> bool {
    false
}

/// Returns whether `file` is a mount point, by the lines of proc_pid_mountinfo(5).
#[cfg(any(target_os = "linux", target_os = "android"))]
fn mounts_have(mounts: &[u8], file: &Path) -> bool {
    const MOUNT_POINT: usize = 4;
    let file = escaped(file);
    mounts
        .split(|&byte| byte == b'\n')
        .filter_map(|line| line.split(|&byte| byte == b' ').nth(MOUNT_POINT))
        .any(|point| point == file)
}

/// Returns a path as the kernel writes it in that file: white space and backslashes are octal, such as
/// `\040`.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn escaped(file: &Path) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;
    let escape = |&byte: &u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
        _ => vec![byte],
    };
    file.as_os_str().as_bytes().iter().flat_map(escape).collect()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_with_their_escapes() {
        let mounts = b"22 1 0:21 / / rw,relatime shared:1 - overlay overlay rw\n\
            36 22 98:0 /host/jobs.db /app/jobs.db rw,noatime - ext4 /dev/root rw\n\
            37 22 98:0 /x /my\\040app/a\\134b\\011c.db rw - ext4 /dev/root rw\n\
            38 22 98:0 /jobs.db /data rw - ext4 /data/jobs.db rw\n";
        for point in ["/", "/app/jobs.db", "/my app/a\\b\tc.db", "/data"] {
            assert!(mounts_have(mounts, Path::new(point)), "{point}");
        }
        for other in [
            "/app",
            "/app/jobs.db-wal",
            "/host/jobs.db",
            "/jobs.db",
            "/data/jobs.db",
            "/my\\040app/a\\134b\\011c.db",
        ] {
            assert!(!mounts_have(mounts, Path::new(other)), "{other}");
        }
    }
}
