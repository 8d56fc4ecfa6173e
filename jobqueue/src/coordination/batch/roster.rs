//! The children of a batch: announced before they are sent, and identified by a token.
//!
//! Membership is named, not counted. Before a child is sent, the record of its group holds a [`ChildRecord`]; a restart
//! compares what it sends with it. A child is its place in the batch, with its key and the id that the sender has set.
//! Payloads only show that a restart sends another list, and only where they can be compared: a release between two
//! starts may add a member or rename the kind, and a codec may write other bytes each time.
//!
//! The batch has a random secret. The headers of a child have a token, which is made from the secret, the child's place and its identity.
//! An event that names the batch without the token for its own identity is an ordinary job: it runs, and ends no child.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::ledger::{Ledger, damaged};
use super::names::{BatchId, FAN};
use crate::error::{Error, ErrorKind};
use crate::json_blob::{Edit, Known};
use crate::message::QueueMessage;
use jobqueue_storage::fast::hex::to_hex;

/// An announced child. Digests in hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ChildRecord {
    /// The id that the sender has set, and the key.
    #[serde(rename = "i")]
    identity: String,
    /// The kind, the version and the names of all members; empty if the payload is not JSON.
    #[serde(rename = "s", default, skip_serializing_if = "String::is_empty")]
    shape: String,
    /// The payload, whatever the order of its members; empty if it is not JSON.
    #[serde(rename = "v", default, skip_serializing_if = "String::is_empty")]
    value: String,
}

impl ChildRecord {
    pub(super) fn new<M: QueueMessage>(id: Option<&str>, key: Option<&str>, payload: &[u8]) -> Self {
        Self::of(&[M::KIND, &M::VERSION.to_string()], id, key, payload)
    }

    fn of(form: &[&str], id: Option<&str>, key: Option<&str>, payload: &[u8]) -> Self {
        let mut identity = Sha256::new();
        for text in [id, key] {
            identity.update([u8::from(text.is_some())]);
            part(&mut identity, text.unwrap_or_default());
        }
        let identity = digits(identity, 12);
        let Ok(json) = serde_json::from_slice::<Value>(payload) else {
            return Self { identity, shape: String::new(), value: String::new() };
        };
        let mut shape = Sha256::new();
        form.iter().for_each(|text| part(&mut shape, text));
        let mut names = BTreeSet::new();
        member_names(&json, &mut Vec::new(), &mut names);
        names.iter().flatten().for_each(|name| part(&mut shape, name));
        let mut value = Sha256::new();
        canonical(&json, &mut value);
        Self { identity, shape: digits(shape, 6), value: digits(value, 12) }
    }

    /// Returns whether this child takes the place of `known` in a restart.
    fn continues(&self, known: &Self) -> bool {
        self.identity == known.identity && (self.shape != known.shape || self.value == known.value)
    }
}

/// Collects the paths of all members. The elements of an array share their paths.
fn member_names<'a>(value: &'a Value, path: &mut Vec<&'a str>, names: &mut BTreeSet<Vec<&'a str>>) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                path.push(name);
                names.insert(path.clone());
                member_names(value, path, names);
                path.pop();
            }
        }
        Value::Array(elements) => elements.iter().for_each(|element| member_names(element, path, names)),
        _ => {}
    }
}

fn canonical(value: &Value, hash: &mut Sha256) {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_unstable_by_key(|(name, _)| *name);
            hash.update(b"{");
            for (name, value) in members {
                part(hash, name);
                canonical(value, hash);
            }
            hash.update(b"}");
        }
        Value::Array(elements) => {
            hash.update(b"[");
            elements.iter().for_each(|element| canonical(element, hash));
            hash.update(b"]");
        }
        scalar => part(hash, &scalar.to_string()),
    }
}

fn part(hash: &mut Sha256, text: &str) {
    hash.update((text.len() as u64).to_be_bytes());
    hash.update(text);
}

fn digits(hash: Sha256, bytes: usize) -> String {
    to_hex(&hash.finalize()[..bytes])
}

impl Ledger<'_> {
    /// Returns the batch's secret. Creates one if the batch is new.
    pub(super) async fn make_secret(&self) -> Result<String, Error> {
        let document = self.document::<String>(&self.id.blob("token")?);
        let (known, former) = match self.read_version(&document).await? {
            None => (Known::Absent, None),
            // A sweep that was interrupted has left the secret of the former batch of this id, which is done.
            Some(former) if self.has_continued().await? && self.plan().await?.is_none() => {
                let secret = former.value.clone();
                (Known::Version(former), Some(secret))
            }
            Some(known) => return Ok(known.value),
        };
        let new = self.storage.runtime().uuid_v4().simple().to_string();
        let make = |found: Option<String>| match found == former {
            true => Edit::Write(new.clone(), Some(new.clone())),
            false => Edit::Keep(found),
        };
        let made = document.change(known, make).await.map_err(damaged)?;
        let missing = || Error::new(ErrorKind::Storage, "the batch was swept while it was being created");
        made.result.ok_or_else(missing)
    }

    /// Returns the batch's secret; `None` if the batch does not exist.
    pub(super) async fn secret(&self) -> Result<Option<String>, Error> {
        self.read(&self.id.blob("token")?).await
    }

    /// Announces the children from number `first` on, before they are sent. Returns the number of the first that no earlier start has
    /// announced.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if an earlier start has announced other children under these numbers,
    /// [`Storage`](ErrorKind::Storage) if the storage fails.
    pub(super) async fn announce(&self, first: u64, children: &[ChildRecord]) -> Result<u64, Error> {
        let (mut at, mut new) = (first, first);
        let mut rest = children;
        while !rest.is_empty() {
            let room = usize::try_from(FAN - at % FAN).unwrap_or(rest.len()).min(rest.len());
            let (here, later) = rest.split_at(room);
            new += self.announce_in_group(at, here).await?;
            (at, rest) = (at + room as u64, later);
        }
        Ok(new)
    }

    /// Returns the number of children that were announced before.
    async fn announce_in_group(&self, first: u64, children: &[ChildRecord]) -> Result<u64, Error> {
        let blob = self.id.roster(first / FAN)?;
        let place = usize::try_from(first % FAN).unwrap_or(usize::MAX);
        let announce = |records: Option<Vec<ChildRecord>>| {
            let mut records = records.unwrap_or_default();
            let known = records.get(place..).unwrap_or_default();
            let is_other = known.iter().zip(children).any(|(known, new)| !new.continues(known));
            if is_other || records.len() < place {
                return Edit::Keep(Err(other_children(&self.id)));
            }
            let changed = known.iter().zip(children).any(|(known, new)| known != new);
            let before = known.len().min(children.len());
            if before == children.len() {
                return Edit::Keep(Ok((changed, before)));
            }
            records.extend_from_slice(&children[before..]);
            Edit::Write(records, Ok((changed, before)))
        };
        let document = self.document(&blob);
        let (changed, before) = document.change(Known::Nothing, announce).await?.result?;
        if changed {
            let batch = self.id.as_str();
            crate::log::warn!(%batch, first, "children have another form than those that an earlier start announced: those that it sent keep their form");
        }
        Ok(before as u64)
    }

    /// Checks that exactly this number of children was announced.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if an earlier start has announced more.
    pub(super) async fn check_announced(&self, children: u64) -> Result<(), Error> {
        let names: Vec<ChildRecord> = self.read(&self.id.roster(children / FAN)?).await?.unwrap_or_default();
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

    fn child(kind: &str, payload: &[u8]) -> ChildRecord {
        ChildRecord::of(&[kind, "1"], None, Some("key"), payload)
    }

    const PAYLOAD: &[u8] = br#"{"a":1,"b":[1,{"c":null}]}"#;

    #[test]
    fn the_order_of_members_does_not_count_and_values_do() {
        let known = child("k", PAYLOAD);
        assert_eq!(known, child("k", br#"{ "b":[1, {"c":null}], "a":1 }"#));
        for other in [r#"{"a":1,"b":[{"c":null},1]}"#, r#"{"a":"1","b":[1,{"c":null}]}"#] {
            assert!(!child("k", other.as_bytes()).continues(&known), "{other}");
        }
    }

    #[test]
    fn another_form_is_the_same_child_with_the_same_id_and_key() {
        let known = child("k", PAYLOAD);
        assert!(child("k", br#"{"a":1,"b":[1,{"c":null}],"new":null}"#).continues(&known));
        assert!(child("renamed", PAYLOAD).continues(&known));
        let other_key = ChildRecord::of(&["k", "1"], None, Some("other"), PAYLOAD);
        assert!(!other_key.continues(&known));
        let other_id = ChildRecord::of(&["k", "1"], Some("id"), Some("key"), PAYLOAD);
        assert!(!other_id.continues(&known));
    }

    #[test]
    fn payloads_that_are_not_json_are_not_compared() {
        assert!(child("k", b"\x00one").continues(&child("k", b"\x00two")));
    }
}
