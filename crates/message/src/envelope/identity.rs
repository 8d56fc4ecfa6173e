//! The identity of events: which job an event belongs to, and whether two events are copies of each other.
//!
//! In CloudEvents 1.0, `source` and `id` together are the identity. Producers may use an identity twice, by
//! mistake or on purpose, so an equal identity alone proves nothing: the [`EventDigest`]s are compared before
//! a copy is deleted.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::text::xml_safe_bytes;
use super::{Envelope, Payload, Sha256Digest};
use crate::job::JobInfo;

/// The identity of a job within its queue: `source` and `id`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    source: Arc<str>,
    id: Arc<str>,
}

impl Identity {
    /// Returns the identity of the events that `source` sent under `id`.
    pub fn new(source: impl Into<Arc<str>>, id: impl Into<Arc<str>>) -> Self {
        Self { source: source.into(), id: id.into() }
    }

    /// Returns a digest of fixed length, for names of blobs and for records of many identities. Producers
    /// choose the ids, which may be long.
    pub fn digest(&self) -> IdentityDigest {
        let mut hash = Sha256::new();
        hash_part(&mut hash, "jobqueue identity 1");
        hash_part(&mut hash, &*self.source);
        hash_part(&mut hash, &*self.id);
        IdentityDigest(Sha256Digest::from(hash))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:?}", self.id, self.source)
    }
}

impl From<&JobInfo> for Identity {
    fn from(job: &JobInfo) -> Self {
        Self::new(Arc::clone(&job.source), Arc::clone(&job.id))
    }
}

/// The digest of an identity: 64 hexadecimal digits as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdentityDigest(Sha256Digest);

impl fmt::Display for IdentityDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The digest of an event's identity, kind, key and payload. Two messages with equal digests are copies of
/// one event, whatever their deliveries have written into them since, and whether their payloads are inline
/// or in blobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventDigest(Sha256Digest);

impl EventDigest {
    /// Returns the bytes of the digest.
    pub fn as_bytes(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }
}

impl fmt::Display for EventDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Envelope {
    /// Returns the identity of the event: its source and id.
    pub fn identity(&self) -> Identity {
        Identity::new(Arc::clone(&self.source), Arc::clone(&self.id))
    }

    /// Returns the digest that identifies copies of the event. It hashes all of an inline payload.
    pub fn digest(&self) -> EventDigest {
        let mut hash = Sha256::new();
        hash_part(&mut hash, "jobqueue event 1");
        hash_part(&mut hash, &*self.source);
        hash_part(&mut hash, &*self.id);
        hash_part(&mut hash, &*self.kind);
        hash.update([u8::from(self.key.is_some())]);
        hash_part(&mut hash, self.key.as_deref().unwrap_or_default());
        hash_part(&mut hash, self.payload.digest().as_bytes());
        EventDigest(Sha256Digest::from(hash))
    }
}

impl Payload {
    /// Returns the SHA-256 of the payload's bytes. It stays the same when the payload moves from the message
    /// to a blob.
    pub fn digest(&self) -> Sha256Digest {
        match self {
            Self::None => Sha256Digest::of(b"null"),
            // Hashes the bytes on the wire, because the blob of a payload that later moves out has these
            // bytes.
            Self::Json(json) => Sha256Digest::of(&xml_safe_bytes(json.as_bytes())),
            Self::Binary(bytes) => Sha256Digest::of(bytes),
            Self::Stored(reference) => reference.sha256,
        }
    }
}

/// Hashes a part with its length, so that ("ab", "c") and ("a", "bc") differ.
pub fn hash_part(hash: &mut Sha256, part: impl AsRef<[u8]>) {
    let part = part.as_ref();
    hash.update((part.len() as u64).to_be_bytes());
    hash.update(part);
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::{JsonText, Parsed, StoredReference, parse};
    use super::*;
    use jobqueue_storage::QueueName;

    fn event(source: &str, id: &str, data: &str) -> Envelope {
        let data = JsonText::check(Bytes::copy_from_slice(data.as_bytes())).unwrap();
        Envelope::new(id, source, "task", Payload::Json(data))
    }

    fn moved_out(mut event: Envelope) -> Envelope {
        let Payload::Json(data) = &event.payload else { panic!("not inline") };
        let queue = QueueName::new("tasks").unwrap();
        event.payload = Payload::Stored(StoredReference::for_data(
            "20260101",
            &queue,
            uuid::Uuid::new_v4(),
            data.as_bytes(),
        ));
        event
    }

    #[test]
    fn source_and_id_are_the_identity_and_its_digest_has_one_length() {
        let one = Identity::new("/shop", "1");
        assert_eq!(one, event("/shop", "1", "{}").identity());
        for other in [Identity::new("/stock", "1"), Identity::new("/shop", "2"), Identity::new("/shop1", "")]
        {
            assert!(one != other && one.digest() != other.digest());
        }
        let long = Identity::new("/shop", "x".repeat(60_000));
        assert_eq!(long.digest().to_string().len(), 64);
    }

    #[test]
    fn moving_a_payload_to_a_blob_keeps_the_digest() {
        let inline = event("/shop", "1", r#"{"name": "a"}"#);
        assert_eq!(inline.digest(), moved_out(inline.clone()).digest());
        let mut delivered = inline.clone();
        delivered.history.attempts = 3;
        delivered.traceparent = Some("00-1-2-01".to_owned());
        assert_eq!(inline.digest(), delivered.digest(), "the history is not part of the digest");
    }

    #[test]
    fn round_trip_over_the_wire_keeps_the_digest() {
        for data in ["\"a\u{ffff}b\u{fffe}\"", r#"{ "a" :  1.0e5, "é": "☃" }"#, "null"] {
            let sent = event("/shop", "1", data);
            let Ok(Parsed::Event(read)) = parse(&sent.to_json().unwrap()) else { panic!("no event") };
            assert_eq!(sent.digest(), read.digest());
            assert_eq!(sent.digest(), moved_out(*read).digest());
        }
    }

    #[test]
    fn another_kind_key_or_payload_is_another_event() {
        let one = event("/shop", "1", "{}");
        let with_key = |key: &str| Envelope { key: Some(key.to_owned()), ..one.clone() };
        let kind = Envelope { kind: "other".into(), ..one.clone() };
        let others = [kind, with_key("k"), with_key("l"), event("/shop", "1", "[]"), event("/a", "1", "{}")];
        let mut digests: Vec<_> = others.iter().chain([&one]).map(Envelope::digest).collect();
        digests.sort_unstable();
        digests.dedup();
        assert_eq!(digests.len(), 6);
    }

    // Processes of other releases look up stored records and tokens by these digests.
    #[test]
    fn digests_do_not_change_between_releases() {
        assert_eq!(
            Identity::new("/shop", "1").digest().to_string(),
            "47a807399ae3fa3cc3586c439bc7dffb8ef20d694bd674106cf351682bff5dcf"
        );
        assert_eq!(
            event("/shop", "1", "{}").digest().to_string(),
            "c6e31de77ed1c82fa564af9a3e1e76b099c2f06b37d9c85c12294de7e3410836"
        );
    }
}
