//! The checkpoint of a job as a document, and as a delivery knows it. `progress.rs` has its changes.
//!
//! A delivery has up to four checkpoints, which differ while a change is not yet accepted by the storage:
//!
//! | checkpoint | place |
//! |---|---|
//! | with all changes | [`KnownCheckpoint::newest`] |
//! | before the first change that is not accepted | [`KnownCheckpoint::accepted`] |
//! | that the next change of the message writes | the history in the content of the message |
//! | that the stored message has | [`StoredCheckpoint`], if it is another |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::codec::{Codec as _, CodecError, Json};
use crate::envelope::{Checkpoint, StoredReference};
use crate::error::{Error, ErrorKind};
use crate::sync::lock;

/// The checkpoint of a message: one JSON document for progress and steps.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Saved {
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub(super) progress: Option<Box<RawValue>>,
    /// The results of finished steps, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) steps: BTreeMap<String, Box<RawValue>>,
    /// The names of finished steps whose results JSON cannot express.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) unwritable: BTreeSet<String>,
}

/// Reads a member that is present. Its value may be `null`: `()` is saved as that.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::deserialize(deserializer).map(Some)
}

impl Saved {
    /// Returns the progress; `None` if there is none, and if it is `null` and no value of the type: a handler
    /// may save an `Option` and read its content.
    pub(crate) fn progress<T: DeserializeOwned>(&self) -> Result<Option<T>, Error> {
        let Some(json) = self.progress.as_deref().map(RawValue::get) else { return Ok(None) };
        match from_json(json) {
            Err(_) if json == "null" => Ok(None),
            read => read.map(Some),
        }
    }

    /// Returns the result of a step if it has finished.
    ///
    /// # Errors
    /// [`Undecodable`](ErrorKind::Undecodable) if JSON could not express the result.
    pub(crate) fn step(&self, name: &str) -> Result<Option<&str>, Error> {
        if self.unwritable.contains(name) {
            let text = "the step has finished, and JSON cannot express its result";
            return Err(Error::new(ErrorKind::Undecodable, text));
        }
        Ok(self.steps.get(name).map(|result| result.get()))
    }
}

pub(crate) fn to_json<T: Serialize + ?Sized>(progress: &T) -> Result<String, Error> {
    json_text(progress).map_err(|e| {
        Error::new(ErrorKind::Invalid, "the checkpoint cannot be written as JSON").with_source(e)
    })
}

/// Writes a value in the way of payloads: a number that JSON cannot express is an error.
pub(super) fn json_text<T: Serialize + ?Sized>(value: &T) -> Result<String, CodecError> {
    let text = String::from_utf8(Json::encode(value)?);
    text.map_err(|e| CodecError::with_source("the JSON is not UTF-8", e))
}

pub(crate) fn from_json<T: DeserializeOwned>(json: &str) -> Result<T, Error> {
    serde_json::from_str(json).map_err(|e| {
        let text = format!(
            "the checkpoint is not of the requested type (line {}, column {}); keep accepting the form that former releases saved",
            e.line(),
            e.column()
        );
        Error::new(ErrorKind::Undecodable, text)
    })
}

/// The checkpoint of a delivery: the parsed document, and the checkpoint in the stored message.
#[derive(Debug, Default)]
pub(super) struct CheckpointState {
    /// The parsed checkpoint, read once. Locked until a change of it is stored.
    pub(super) known: tokio::sync::Mutex<Option<KnownCheckpoint>>,
    stored: Mutex<StoredState>,
}

#[derive(Debug, Default)]
pub(super) struct KnownCheckpoint {
    /// The checkpoint with all changes, including those that the next change will save.
    pub(super) newest: Saved,
    /// The checkpoint before the first change that the storage has not accepted; `None` if it has accepted
    /// all.
    pub(super) accepted: Option<Saved>,
}

#[derive(Debug, Default)]
struct StoredState {
    checkpoint: StoredCheckpoint,
    /// Blobs of earlier checkpoints that the stored message may still refer to.
    superseded: Vec<StoredReference>,
}

/// The checkpoint in the stored message, compared to the one in the content.
#[derive(Debug, Default)]
enum StoredCheckpoint {
    #[default]
    Same,
    /// The storage may not have accepted the newest checkpoint, and the message has this one, if any.
    Older(Option<Checkpoint>),
}

impl CheckpointState {
    /// Records that the content has a new checkpoint in place of `former`, before the storage is asked to
    /// accept it.
    pub(super) fn supersede(&self, former: Option<Checkpoint>) {
        let mut stored = lock(&self.stored);
        if matches!(stored.checkpoint, StoredCheckpoint::Same) {
            stored.checkpoint = StoredCheckpoint::Older(former.clone());
        }
        if let Some(Checkpoint::Stored(former)) = former {
            stored.superseded.push(former);
        }
    }

    /// Records that the storage has accepted the newest checkpoint, or may have.
    pub(super) fn accept(&self) {
        lock(&self.stored).checkpoint = StoredCheckpoint::Same;
    }

    /// Replaces a checkpoint that the storage has not accepted by the one in the stored message, whose blob
    /// is kept.
    pub(super) fn restore(&self, checkpoint: &mut Option<Checkpoint>) {
        let mut stored = lock(&self.stored);
        let StoredCheckpoint::Older(older) = std::mem::take(&mut stored.checkpoint) else { return };
        // Preparing a dead letter may have stored the new checkpoint in a blob.
        if !matches!(checkpoint, Some(Checkpoint::Inline(_))) {
            return;
        }
        if let Some(Checkpoint::Stored(kept)) = &older {
            stored.superseded.retain(|reference| reference != kept);
        }
        *checkpoint = older;
    }

    pub(super) fn has_superseded(&self) -> bool {
        !lock(&self.stored).superseded.is_empty()
    }

    /// Takes the blobs of earlier checkpoints, to which the stored message no longer refers.
    pub(super) fn take_superseded(&self) -> Vec<StoredReference> {
        std::mem::take(&mut lock(&self.stored).superseded)
    }
}
