//! The document that a checkpoint stores.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::codec::{Codec as _, CodecError, Json};
use crate::error::{Error, ErrorKind};

/// The checkpoint of a message: one JSON document for progress and steps.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Saved {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) progress: Option<Box<RawValue>>,
    /// The results of finished steps, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) steps: BTreeMap<String, Box<RawValue>>,
    /// The names of finished steps whose results JSON cannot express.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) unwritable: BTreeSet<String>,
}

impl Saved {
    pub(crate) fn progress(&self) -> Option<&str> {
        self.progress.as_deref().map(RawValue::get)
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
