//! The file in which an operator's changes are recorded.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use jobqueue::admin::OperatorEvent;

use crate::exit::Failure;
use crate::output::say;

/// A file of which each line is an [`OperatorEvent`] in JSON.
pub(crate) struct AuditFile(File);

impl AuditFile {
    /// Opens the file before anything is changed: a change that cannot be recorded is not made.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let refuse =
            |error| Failure::Refused(format!("the audit file {} cannot be written: {error}", path.display()));
        file.map(Self).map_err(refuse)
    }

    /// Appends an event by one write, so that programs that write at the same time do not mix their lines.
    pub(crate) fn append(&self, event: &OperatorEvent) {
        let line = serde_json::to_string(event).map(|json| json + "\n").map_err(std::io::Error::from);
        let written = line.and_then(|line| {
            (&self.0).write_all(line.as_bytes())?;
            self.0.sync_data()
        });
        if let Err(error) = written {
            say(&format!("the change was made, but could not be recorded in the audit file: {error}"));
        }
    }
}
