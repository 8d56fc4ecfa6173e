//! The file in which an operator's changes are recorded.

use std::fs::{File, OpenOptions};
use std::io::{Error, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use jobqueue_admin::OperatorEvent;

use crate::exit::Failure;

/// A file of [`OperatorEvent`]s, one JSON document per line.
pub(crate) struct AuditFile(PathBuf);

impl AuditFile {
    /// Returns the file at `path`. The first write creates it.
    pub(crate) fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Returns the file at `path` after a test that it can be written, so that a command fails before it
    /// sends a request to the storage.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let audit = Self::new(path);
        audit.write(b"").map_err(|error| Failure::Refused(error.to_string()))?;
        Ok(audit)
    }

    /// Appends an event, and returns once it is on disk, if the file is a regular file.
    pub(crate) fn append(&self, event: &OperatorEvent) -> Result<(), Error> {
        // Senders choose the ids of jobs, so the line must not control the terminal in which it is read.
        let line = crate::output::sanitize_json(&serde_json::to_string(event)?) + "\n";
        self.write(line.as_bytes())
    }

    /// Writes `line` with a single call, so that the lines of concurrent programs do not interleave. Opens
    /// the file each time, because another program may have rotated it.
    fn write(&self, line: &[u8]) -> Result<(), Error> {
        let write = || {
            let end = if self.ends_mid_line() && !line.is_empty() { &b"\n"[..] } else { b"" };
            let mut options = OpenOptions::new();
            // The file names people and jobs, so other users of the machine must not read it.
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o640);
            let mut file = options.create(true).append(true).open(&self.0)?;
            file.write_all(&[end, line].concat())?;
            // A pipe or a terminal cannot be synced.
            if file.metadata()?.is_file() { file.sync_data() } else { Ok(()) }
        };
        let explain = |error: Error| {
            Error::new(
                error.kind(),
                format!("the audit file {} cannot be written: {error}", self.0.display()),
            )
        };
        write().map_err(explain)
    }

    /// Returns whether the last line lacks its line break, because the disk was full when it was written.
    fn ends_mid_line(&self) -> bool {
        let mut last = [b'\n'];
        // Opening a pipe would block until its other end is opened.
        if self.0.is_file()
            && let Ok(mut file) = File::open(&self.0)
            && file.seek(SeekFrom::End(-1)).is_ok()
        {
            let _ = file.read(&mut last);
        }
        last != [b'\n']
    }
}
