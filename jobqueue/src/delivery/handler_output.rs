//! The output of a handler. It stays with its message until the hooks at the end of the job have succeeded.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::checkpoint::to_json;
use super::leased_job::LeasedJob;
use crate::envelope::Envelope;
use crate::error::{Error, ErrorKind};

/// The maximum size of an output that is kept with the message, in bytes. With a larger output the handler
/// runs again.
const MAX_KEPT_OUTPUT: usize = 16 * 1024;

/// The output of a handler, for hooks at the end of the job.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct HandlerOutput {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) result: Option<Box<RawValue>>,
    /// True if another message continues the job.
    #[serde(default)]
    pub(super) handed_over: bool,
}

impl HandlerOutput {
    /// Keeps the output with the message until all hooks have succeeded, unless it is too large.
    pub(super) fn keep_with(&self, leased_job: &LeasedJob) {
        if let Ok(json) = self.to_json() {
            leased_job.handler_has_finished(json);
        }
    }

    /// Returns the output as JSON, to be kept with the message.
    ///
    /// # Errors
    /// [`TooLarge`](ErrorKind::TooLarge) if the message cannot keep the output.
    pub(super) fn to_json(&self) -> Result<String, Error> {
        let json = to_json(self)?;
        if json.len() > MAX_KEPT_OUTPUT {
            let text = format!(
                "the result has {} bytes as JSON; {MAX_KEPT_OUTPUT} are kept with the message",
                json.len()
            );
            return Err(Error::new(ErrorKind::TooLarge, text));
        }
        Ok(json)
    }

    /// Returns whether the handler of an earlier delivery has finished. A pending dead letter overrides that:
    /// the job has failed.
    pub(crate) fn is_kept(leased_job: &LeasedJob) -> bool {
        let is_kept = |event: &Envelope| event.history.finished.is_some() && event.dead_letter.is_none();
        leased_job.with_envelope(is_kept).unwrap_or(false)
    }

    pub(super) fn kept_with(leased_job: &LeasedJob) -> Option<Self> {
        let json = leased_job.with_envelope(|event| event.history.finished.clone()).flatten()?;
        serde_json::from_str(&json).ok()
    }
}
