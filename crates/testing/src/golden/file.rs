//! A golden file: queue, kind, version, key, media type, Rust type and payload of one example, as JSON.

use std::any::type_name;
use std::borrow::Cow;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use jobqueue::QueueMessage;
use jobqueue::codec::{Codec, encode_message};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::GoldenError;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Golden {
    pub(super) kind: String,
    pub(super) version: u32,
    queue: String,
    /// The key, which decides the order and the shard of the job, and its uniqueness.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    pub(super) datacontenttype: String,
    /// The name of the Rust type. It reveals a kind that was renamed without an alias. Messages do not
    /// contain it.
    rust_type: String,
    #[serde(flatten)]
    payload: Payload,
    /// The example as serde writes it, if the codec writes it differently each time, for example with a
    /// nonce. It is compared in place of the payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    plain: Option<Value>,
}

/// The payload as in a CloudEvent: readable JSON, or base64 for anything else.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Payload {
    #[serde(rename = "data")]
    Json(Value),
    #[serde(rename = "data_base64")]
    Base64(String),
}

impl Golden {
    /// Returns the file of `message`, of which `payload` is one writing.
    ///
    /// # Errors
    /// [`GoldenError::NotComparable`].
    pub(super) fn of<M: QueueMessage>(message: &M, payload: &[u8]) -> Result<Self, GoldenError> {
        let media_type = M::Codec::CONTENT_TYPE;
        let is_json = media_type.ends_with("json") && !has_wide_integer(payload);
        let json = is_json.then(|| serde_json::from_slice(payload).ok()).flatten();
        let is_random = json.is_none() && encode_message(message).is_ok_and(|again| again != payload);
        let plain = is_random.then(|| serde_json::to_value(message)).transpose();
        Ok(Self {
            kind: M::KIND.to_owned(),
            version: M::VERSION,
            queue: M::QUEUE.to_owned(),
            key: message.key().map(Cow::into_owned),
            datacontenttype: media_type.to_owned(),
            rust_type: type_name::<M>().to_owned(),
            payload: json.map_or_else(|| Payload::Base64(STANDARD.encode(payload)), Payload::Json),
            plain: plain.map_err(GoldenError::NotComparable)?,
        })
    }

    pub(super) fn is_of<M: QueueMessage>(&self) -> bool {
        self.rust_type == type_name::<M>()
    }

    /// Returns the file with the Rust type of `other`, for a comparison: the Rust type is not part of the
    /// wire form.
    pub(super) fn with_type_of(&self, other: &Self) -> Self {
        Self { rust_type: other.rust_type.clone(), ..self.clone() }
    }

    /// Returns the file with the present queue and key of its message, or `None` if they are unchanged.
    pub(super) fn moved_to<M: QueueMessage>(&self, message: &M) -> Option<Self> {
        let key = message.key();
        let is_same = self.queue == M::QUEUE && self.key.as_deref() == key.as_deref();
        (!is_same).then(|| Self { queue: M::QUEUE.to_owned(), key: key.map(Cow::into_owned), ..self.clone() })
    }

    pub(super) fn payload_bytes(&self, path: &Path) -> Result<Vec<u8>, GoldenError> {
        match &self.payload {
            Payload::Json(value) => Ok(value.to_string().into_bytes()),
            Payload::Base64(text) => STANDARD.decode(text).map_err(|error| malformed(path, &error)),
        }
    }

    pub(super) fn to_json(&self) -> Value {
        // Serializing strings, a number and a `Value` cannot fail.
        serde_json::to_value(self).unwrap_or_default()
    }

    /// Returns the members that two writings of one message have in common.
    pub(super) fn comparable(&self) -> Value {
        let mut json = self.to_json();
        if let (Some(_), Some(members)) = (&self.plain, json.as_object_mut()) {
            members.remove("data_base64");
        }
        json
    }

    pub(super) fn read(path: &Path) -> Result<Option<Self>, GoldenError> {
        match fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| malformed(path, &error)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(GoldenError::Io { path: path.to_owned(), source }),
        }
    }

    pub(super) fn write(&self, path: &Path) -> Result<(), GoldenError> {
        let io = |source| GoldenError::Io { path: path.to_owned(), source };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(io)?;
        }
        fs::write(path, format!("{:#}\n", self.to_json())).map_err(io)
    }
}

/// Returns whether a JSON text has an integer beyond 64 bits, which a [`Value`] would round to a float.
fn has_wide_integer(json: &[u8]) -> bool {
    let (mut is_string, mut is_escaped) = (false, false);
    let mut is_outside = |byte: &u8| {
        let was_string = is_string;
        match (is_escaped, byte) {
            (true, _) => is_escaped = false,
            (false, b'\\') => is_escaped = is_string,
            (false, b'"') => is_string = !is_string,
            _ => {}
        }
        !was_string && *byte != b'"'
    };
    let outside: Vec<u8> =
        json.iter().copied().map(|byte| if is_outside(&byte) { byte } else { b' ' }).collect();
    let outside = String::from_utf8_lossy(&outside);
    let numbers = outside.split(|c: char| !c.is_ascii_alphanumeric() && !".+-".contains(c));
    let is_integer =
        |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') && !text.is_empty();
    numbers.filter(is_integer).any(|text| text.parse::<u64>().is_err() && text.parse::<i64>().is_err())
}

fn malformed(path: &Path, problem: &dyn std::fmt::Display) -> GoldenError {
    GoldenError::Malformed { path: path.to_owned(), problem: problem.to_string() }
}

/// Returns all golden files in a folder, sorted by name, or none if the folder does not exist.
pub(super) fn all(folder: &Path) -> Result<Vec<(PathBuf, Golden)>, GoldenError> {
    let io = |source| GoldenError::Io { path: folder.to_owned(), source };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io(error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(io)?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            paths.push(path);
        }
    }
    paths.sort();
    let mut found = Vec::new();
    for path in paths {
        if let Some(golden) = Golden::read(&path)? {
            found.push((path, golden));
        }
    }
    Ok(found)
}

/// Returns the file's name, `<kind>.v<version>[.<example>].json`, with characters that file systems forbid
/// written as `%XX`.
pub(super) fn name(kind: &str, version: u32, example: &str) -> String {
    let example = if example.is_empty() { String::new() } else { format!(".{}", portable(example)) };
    format!("{}.v{version}{example}.json", portable(kind))
}

fn portable(text: &str) -> String {
    let mut name = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' => name.push(char::from(byte)),
            other => name.push_str(&format!("%{other:02X}")),
        }
    }
    name
}
