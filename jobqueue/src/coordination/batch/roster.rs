//! The children of a batch: announced before they are sent, and identified by a token.
//!
//! Membership is named, not counted. Before a child is sent, the record of its group holds the digest of its content;
//! a restart compares what it sends with it. The token of the batch is random and travels in the headers of the
//! children. An event that names the batch without the token is an ordinary job: it runs, and ends no child.

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::ledger::{Ledger, MAX_BYTES};
use super::names::{BatchId, FAN};
use crate::error::{Error, ErrorKind};
use crate::json_blob::{Edit, JsonBlob, Known};

/// The digest of a child's content: 32 hexadecimal digits.
pub(super) type ChildDigest = String;

/// Returns the digest of a child: its kind, its payload, and the id and the key if the sender has set them. The order of
/// members in a JSON object does not matter, because maps have none.
pub(super) fn digest(kind: &str, payload: &[u8], set: [Option<&str>; 2]) -> ChildDigest {
    let mut hash = Sha256::new();
    hash.update(kind.as_bytes());
    hash.update([0]);
    match serde_json::from_slice::<Value>(payload) {
        Ok(value) => canonical(&value, &mut hash),
        Err(_) => hash.update(payload),
    }
    for (place, text) in (1_u8..).zip(set) {
        if let Some(text) = text {
            hash.update([place]);
            hash.update((text.len() as u64).to_be_bytes());
            hash.update(text);
        }
    }
    hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn canonical(value: &Value, hash: &mut Sha256) {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_unstable_by_key(|(name, _)| *name);
            hash.update(b"{");
            for (name, value) in members {
                hash.update((name.len() as u64).to_be_bytes());
                hash.update(name.as_bytes());
                canonical(value, hash);
            }
            hash.update(b"}");
        }
        Value::Array(elements) => {
            hash.update(b"[");
            elements.iter().for_each(|element| canonical(element, hash));
            hash.update(b"]");
        }
        scalar => {
            let text = scalar.to_string();
            hash.update((text.len() as u64).to_be_bytes());
            hash.update(text.as_bytes());
        }
    }
}

impl Ledger<'_> {
    /// Returns the batch's token. Creates one if the batch is new.
    pub(super) async fn make_token(&self) -> Result<String, Error> {
        let blob = self.id.blob("token")?;
        let new = self.storage.runtime().uuid_v4().simple().to_string();
        if self.create(&blob, &new).await? {
            return Ok(new);
        }
        let missing = || Error::new(ErrorKind::Storage, "the batch was swept while it was being created");
        self.token().await?.ok_or_else(missing)
    }

    /// Returns the batch's token; `None` if the batch does not exist.
    pub(super) async fn token(&self) -> Result<Option<String>, Error> {
        self.read(&self.id.blob("token")?).await
    }

    /// Announces the children from number `first` on, before they are sent.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if an earlier start has announced other children under these numbers,
    /// [`Storage`](ErrorKind::Storage) if the storage fails.
    pub(super) async fn announce(&self, first: u64, digests: &[ChildDigest]) -> Result<(), Error> {
        let mut at = first;
        let mut rest = digests;
        while !rest.is_empty() {
            let room = usize::try_from(FAN - at % FAN).unwrap_or(rest.len()).min(rest.len());
            let (here, later) = rest.split_at(room);
            self.announce_in_group(at, here).await?;
            (at, rest) = (at + room as u64, later);
        }
        Ok(())
    }

    async fn announce_in_group(&self, first: u64, digests: &[ChildDigest]) -> Result<(), Error> {
        let blob = self.id.roster(first / FAN)?;
        let place = usize::try_from(first % FAN).unwrap_or(usize::MAX);
        let announce = |names: Option<Vec<ChildDigest>>| {
            let mut names = names.unwrap_or_default();
            let known = names.get(place..).unwrap_or_default();
            if known.iter().zip(digests).any(|(known, new)| known != new) || names.len() < place {
                return Edit::Keep(Err(other_children(&self.id)));
            }
            if known.len() >= digests.len() {
                return Edit::Keep(Ok(()));
            }
            names.extend_from_slice(&digests[known.len()..]);
            Edit::Write(names, Ok(()))
        };
        let document = JsonBlob::new(self.storage.blobs(), self.storage.runtime(), blob, MAX_BYTES);
        document.change(Known::Nothing, announce).await?.result
    }

    /// Checks that exactly this number of children was announced.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if an earlier start has announced more.
    pub(super) async fn check_announced(&self, children: u64) -> Result<(), Error> {
        let names: Vec<ChildDigest> = self.read(&self.id.roster(children / FAN)?).await?.unwrap_or_default();
        if names.len() as u64 == children % FAN { Ok(()) } else { Err(other_children(&self.id)) }
    }
}

fn other_children(id: &BatchId) -> Error {
    let id = id.as_str();
    let text = format!(
        "an earlier start of the batch `{id}` has sent other children, or more of them; a restart must send the same children \
         in the same order, and another fan-out needs an id of its own"
    );
    Error::new(ErrorKind::Conflict, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_members_does_not_count_and_all_else_does() {
        let digest = |kind, payload: &[u8]| digest(kind, payload, [None, None]);
        let one = digest("k", br#"{"a":1,"b":[1,{"c":null}]}"#);
        assert_eq!(one, digest("k", br#"{ "b":[1, {"c":null}], "a":1 }"#));
        for other in [r#"{"a":1,"b":[{"c":null},1]}"#, r#"{"a":"1","b":[1,{"c":null}]}"#, r#"{"a":1}"#, "x"] {
            assert_ne!(one, digest("k", other.as_bytes()), "{other}");
        }
        assert_ne!(one, digest("l", br#"{"a":1,"b":[1,{"c":null}]}"#));
    }
}
