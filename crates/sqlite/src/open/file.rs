//! Checks a path before SQLite sees it.
//!
//! SQLite's locks belong to the process, and end when any part of the process closes a descriptor of the
//! file. So nothing here opens an existing file; all checks use the path.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use super::names;
use super::platform::{self, FileSystem};
use crate::error::Cause;
use jobqueue_storage::StoreErrorKind;
use jobqueue_storage::log::warn;

/// Checks `path`, and returns it with its folder resolved. If there is no file, creates an empty one if
/// `creates` is true, and fails otherwise.
pub(super) fn check(path: &Path, creates: bool) -> Result<PathBuf, Cause> {
    let file = resolve(path)?;
    check_folder(file.parent().unwrap_or(Path::new("/")))?;
    check_file(&file, creates)?;
    Ok(file)
}

/// Resolves the folder of `path`. Refuses names that SQLite would not read as a path.
pub(crate) fn resolve(path: &Path) -> Result<PathBuf, Cause> {
    let name = path.file_name().ok_or_else(|| refuse("the path is empty or has no file name"))?;
    let text = path.as_os_str().to_string_lossy();
    if text.starts_with(":memory:") {
        return Err(refuse("SQLite in memory is not durable; use the memory storage, `memory:`"));
    }
    if text.starts_with("file:") {
        return Err(refuse("SQLite URIs are not supported; pass the path of a file"));
    }
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let folder = folder.canonicalize().map_err(|error| unusable_folder(folder, &error))?;
    Ok(folder.join(name))
}

fn check_folder(folder: &Path) -> Result<(), Cause> {
    let metadata = folder.metadata().map_err(|error| unusable_folder(folder, &error))?;
    if !metadata.is_dir() {
        return Err(refuse("the parent of the path is not a folder"));
    }
    if platform::is_open_to_all(&metadata) {
        return Err(refuse(
            "other users may create files in the folder of the file, such as its write-ahead log; use a folder that they may not write",
        ));
    }
    match platform::file_system(folder) {
        Ok(FileSystem::Local) => Ok(()),
        Ok(FileSystem::Memory) => {
            warn!("the storage's file is on an in-memory file system, which a restart of the machine erases");
            Ok(())
        }
        Ok(FileSystem::Network(kind)) => Err(refuse(format!(
            "the file is on {kind}, where SQLite's locks and shared memory do not work; use a local disk"
        ))),
        Err(error) => {
            warn!(%error, "cannot determine the file system of the storage's file");
            Ok(())
        }
    }
}

fn check_file(file: &Path, creates: bool) -> Result<(), Cause> {
    let metadata = match file.symlink_metadata() {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound && !creates => {
            let advice = "there is no file; it is created when a program opens the storage";
            return Err(Cause::new(StoreErrorKind::NotPrepared, advice));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return match create(file) {
                // Another process created the file first.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => check_file(file, creates),
                created => created.map(drop).map_err(|error| cannot_create(&error)),
            };
        }
        Err(error) => return Err(refuse(error.to_string())),
    };
    if metadata.is_symlink() {
        return Err(refuse("the path is a symbolic link; pass the path of the file itself"));
    }
    if metadata.is_dir() {
        return Err(refuse("the path is a folder; pass the path of a file in it"));
    }
    if !metadata.is_file() {
        return Err(refuse("the path is a pipe, socket or device; pass the path of a regular file"));
    }
    if metadata.permissions().readonly() {
        return Err(refuse("the file is read-only; make it writable"));
    }
    names::check(file)
}

/// Creates an empty file that only its owner can read; fails if it exists.
pub(crate) fn create(file: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(file)
}

pub(crate) fn cannot_create(error: &io::Error) -> Cause {
    refuse(format!("the file cannot be created: {error}"))
}

fn unusable_folder(folder: &Path, error: &io::Error) -> Cause {
    let folder = folder.display();
    refuse(match error.kind() {
        io::ErrorKind::NotFound => {
            format!(
                "the folder `{folder}` of the file does not exist; create it, for example with `mkdir -p`"
            )
        }
        _ => format!("the folder `{folder}` of the file cannot be used: {error}"),
    })
}

pub(crate) fn refuse(detail: impl Into<std::sync::Arc<str>>) -> Cause {
    Cause::new(StoreErrorKind::InvalidInput, detail)
}
