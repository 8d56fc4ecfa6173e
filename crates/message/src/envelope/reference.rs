//! References to payloads and checkpoints in blobs.
//!
//! A reference names a blob that the framework wrote for one queue, in the framework's container. Its
//! grammar, `YYYYMMDD/<queue>/<uuid>`, cannot express a URL, a path, or another account or container.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};
use uuid::{Builder, Uuid};

use jobqueue_storage::QueueName;
use jobqueue_storage::fast::hex::{read_hex, to_hex};

/// A reference to a payload: its blob, its length and its hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredReference {
    day: String,
    queue: QueueName,
    id: Uuid,
    /// The length in bytes.
    pub size: u64,
    /// The SHA-256 of the bytes.
    pub sha256: Sha256Digest,
}

impl StoredReference {
    /// Returns a new, unique reference for `data`, to be written on `day` (`YYYYMMDD`).
    pub fn for_data(day: impl Into<String>, queue: &QueueName, id: Uuid, data: &[u8]) -> Self {
        Self {
            day: day.into(),
            queue: queue.clone(),
            id,
            size: data.len() as u64,
            sha256: Sha256Digest::of(data),
        }
    }

    /// Returns the reference to a copy of this blob for `queue`. All copies for one `holder` have the same
    /// name, so that repeating a copy writes no second blob.
    #[must_use]
    pub fn copy_for(&self, queue: &QueueName, holder: &str) -> Self {
        let digest = Sha256Digest::of(format!("copy\0{self}\0{holder}").as_bytes());
        let mut id = [0; 16];
        id.copy_from_slice(&digest.0[..16]);
        Self { queue: queue.clone(), id: Builder::from_random_bytes(id).into_uuid(), ..self.clone() }
    }

    /// Returns the reference to the same data in a blob that several messages may share. The version of its
    /// UUID is 8, and no message owns it.
    #[must_use]
    pub fn shared(self) -> Self {
        Self { id: Builder::from_custom_bytes(self.id.into_bytes()).into_uuid(), ..self }
    }

    /// Returns whether several messages may share the blob, so that it must not be deleted with one of them.
    pub fn is_shared(&self) -> bool {
        self.id.get_version_num() == 8
    }

    /// Parses the three attributes of a reference.
    ///
    /// # Errors
    /// [`ReferenceError`] if an attribute is missing or outside the grammar.
    pub fn parse(reference: &str, size: Option<u64>, sha256: Option<&str>) -> Result<Self, ReferenceError> {
        let mut parts = reference.split('/');
        let (Some(day), Some(queue), Some(id), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(ReferenceError("the reference is not of the form YYYYMMDD/<queue>/<uuid>"));
        };
        if day.len() != 8 || !day.bytes().all(|b| b.is_ascii_digit()) {
            return Err(ReferenceError("the reference does not begin with a day"));
        }
        let queue =
            QueueName::new(queue).map_err(|_| ReferenceError("the reference does not name a queue"))?;
        let id = Uuid::try_parse(id).ok().filter(|uuid| uuid.hyphenated().to_string() == id);
        let id = id.ok_or(ReferenceError("the reference does not end with a UUID"))?;
        let size = size.ok_or(ReferenceError("the size is missing"))?;
        let sha256 =
            sha256.and_then(|text| text.parse().ok()).ok_or(ReferenceError("the SHA-256 is missing"))?;
        Ok(Self { day: day.to_owned(), queue, id, size, sha256 })
    }

    /// Returns the queue for which the blob was written.
    pub fn queue(&self) -> &QueueName {
        &self.queue
    }
}

/// Writes the blob's name: `dataref` on the wire.
impl fmt::Display for StoredReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.day, self.queue, self.id.hyphenated())
    }
}

/// The error for a reference outside the grammar. Its text does not quote the reference, which is untrusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid reference to a payload: {0}")]
pub struct ReferenceError(&'static str);

/// A SHA-256 digest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sha256Digest([u8; 32]);

impl Sha256Digest {
    /// Returns the digest of `data`.
    pub fn of(data: &[u8]) -> Self {
        Self(Sha256::digest(data).into())
    }

    /// Returns the bytes of the digest.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl From<Sha256> for Sha256Digest {
    fn from(hash: Sha256) -> Self {
        Self(hash.finalize().into())
    }
}

impl fmt::Display for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_hex(&self.0))
    }
}

impl fmt::Debug for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Sha256Digest {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        let digest = read_hex(text.to_ascii_lowercase().as_bytes());
        digest.map(Self).ok_or(ReferenceError("the SHA-256 is not 64 hexadecimal digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_for_one_holder_have_one_name_and_shared_ones_are_known_by_it() {
        let queue: QueueName = "tasks".parse().unwrap();
        let old = StoredReference::for_data("20300101", &queue, Uuid::from_u128(7), b"payload");
        let copy = old.copy_for(&queue, "message 1");
        assert_ne!(copy, old);
        assert_eq!(copy, old.copy_for(&queue, "message 1"));
        assert_ne!(copy, old.copy_for(&queue, "message 2"));
        assert!(!copy.is_shared());
        let shared = copy.shared();
        assert!(shared.is_shared());
        let digest = shared.sha256.to_string();
        let read = StoredReference::parse(&shared.to_string(), Some(shared.size), Some(&digest)).unwrap();
        assert!(read == shared && read.is_shared());
    }

    #[test]
    fn digest_is_read_in_either_case_and_from_digits_only() {
        let digest = Sha256Digest::of(b"payload");
        assert_eq!(digest.to_string().parse(), Ok(digest));
        assert_eq!(digest.to_string().to_uppercase().parse(), Ok(digest));
        for bad in ["", "00", &"+f".repeat(32), &"é".repeat(32), &digest.to_string()[1..]] {
            assert!(bad.parse::<Sha256Digest>().is_err(), "{bad}");
        }
    }
}
