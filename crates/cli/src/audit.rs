//! The file in which an operator's changes are recorded.

use std::fs::{File, OpenOptions};
use std::io::{Error, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use jobqueue_admin::OperatorEvent;

use crate::exit::Failure;

/// A file of which each line is an [`OperatorEvent`] in JSON.
pub(crate) struct AuditFile(PathBuf);

impl AuditFile {
    /// Returns the file, which is made when it is first written.
    pub(crate) fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Checks that the file can be written before anything is asked of the storage.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let audit = Self::new(path);
        audit.write(b"").map_err(|error| Failure::Refused(error.to_string()))?;
        Ok(audit)
    }

    /// Appends an event, and returns once it is on the disk, if the file is one.
    pub(crate) fn append(&self, event: &OperatorEvent) -> Result<(), Error> {
        // Senders choose the ids of jobs: read in a terminal, a line controls nothing.
        let line = crate::output::sanitize_json(&serde_json::to_string(event)?) + "\n";
        self.write(line.as_bytes())
    }

    /// Writes by one call, so that programs that write at the same time do not mix their lines. Opens the file each time: another program
    /// may have moved it away to begin a new one.
    fn write(&self, line: &[u8]) -> Result<(), Error> {
        let write = || {
            let end = if self.ends_mid_line() && !line.is_empty() { &b"\n"[..] } else { b"" };
            let mut options = OpenOptions::new();
            // It names people and jobs: not everybody on the machine reads it.
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o640);
            let mut file = options.create(true).append(true).open(&self.0)?;
            file.write_all(&[end, line].concat())?;
            // A pipe or a terminal is no disk, and refuses it.
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

    /// Returns whether the last line has no end, because a disk was full when it was written.
    fn ends_mid_line(&self) -> bool {
        let mut last = [b'\n'];
        // The opening of a pipe would wait for its other end.
        if self.0.is_file()
            && let Ok(mut file) = File::open(&self.0)
            && file.seek(SeekFrom::End(-1)).is_ok()
        {
            let _ = file.read(&mut last);
        }
        last != [b'\n']
    }
}
