//! The children of a batch: announced before they are sent, and identified by a token.
//!
//! Membership is named, not counted. Before a child is sent, the record of its group gets a [`ChildRecord`];
//! a restart compares its children with the records. A child is identified by its position in the batch, with
//! its key and the id set by the sender. Payloads only show that a restart sends another list, and only where
//! they can be compared: a release between two starts may add a member or rename the kind, and a codec may
//! write other bytes each time.
//!
//! The batch has a random secret. The headers of a child contain a token, which is made from the secret, the
//! child's place and its identity. An event that names the batch without the token for its own identity is an
//! ordinary job: it runs, and ends no child.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::envelope::hash_part;
use crate::json_blob::Edit;
use crate::message::QueueMessage;
use jobqueue_storage::fast::hex::to_hex;

/// An announced child. The fields are digests in hexadecimal digits.
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
            hash_part(&mut identity, text.unwrap_or_default());
        }
        let identity = hex_prefix(identity, 12);
        let Ok(json) = serde_json::from_slice::<Value>(payload) else {
            return Self { identity, shape: String::new(), value: String::new() };
        };
        let mut shape = Sha256::new();
        form.iter().for_each(|text| hash_part(&mut shape, text));
        let mut names = BTreeSet::new();
        member_names(&json, &mut Vec::new(), &mut names);
        names.iter().flatten().for_each(|name| hash_part(&mut shape, name));
        let mut value = Sha256::new();
        hash_canonical(&json, &mut value);
        Self { identity, shape: hex_prefix(shape, 6), value: hex_prefix(value, 12) }
    }

    /// Returns whether this child of a restart is the same as `known`.
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

/// Hashes a value independently of the order of its members.
fn hash_canonical(value: &Value, hash: &mut Sha256) {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_unstable_by_key(|(name, _)| *name);
            hash.update(b"{");
            for (name, value) in members {
                hash_part(hash, name);
                hash_canonical(value, hash);
            }
            hash.update(b"}");
        }
        Value::Array(elements) => {
            hash.update(b"[");
            elements.iter().for_each(|element| hash_canonical(element, hash));
            hash.update(b"]");
        }
        scalar => hash_part(hash, scalar.to_string()),
    }
}

fn hex_prefix(hash: Sha256, bytes: usize) -> String {
    to_hex(&hash.finalize()[..bytes])
}

/// The announcement of children in the records of their groups.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ChildAnnouncement {
    /// The number of these children that an earlier start has announced.
    pub(super) before: usize,
    /// True if the earlier start announced a child with another form.
    pub(super) changed: bool,
}

/// Announces `children` at a place of a group: after the announced children, or as the same children again.
/// Returns `None` if other children are announced there.
pub(super) fn announce_children(
    found: Option<Vec<ChildRecord>>,
    place: usize,
    children: &[ChildRecord],
) -> Edit<Vec<ChildRecord>, Option<ChildAnnouncement>> {
    let mut records = found.unwrap_or_default();
    let known = records.get(place..).unwrap_or_default();
    let is_other = known.iter().zip(children).any(|(known, new)| !new.continues(known));
    if is_other || records.len() < place {
        return Edit::Keep(None);
    }
    let changed = known.iter().zip(children).any(|(known, new)| known != new);
    let before = known.len().min(children.len());
    if before == children.len() {
        return Edit::Keep(Some(ChildAnnouncement { before, changed }));
    }
    records.extend_from_slice(&children[before..]);
    Edit::Write(records, Some(ChildAnnouncement { before, changed }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child(kind: &str, payload: &[u8]) -> ChildRecord {
        ChildRecord::of(&[kind, "1"], None, Some("key"), payload)
    }

    const PAYLOAD: &[u8] = br#"{"a":1,"b":[1,{"c":null}]}"#;

    #[test]
    fn order_of_members_does_not_count_and_values_do() {
        let known = child("k", PAYLOAD);
        assert_eq!(known, child("k", br#"{ "b":[1, {"c":null}], "a":1 }"#));
        for other in [r#"{"a":1,"b":[{"c":null},1]}"#, r#"{"a":"1","b":[1,{"c":null}]}"#] {
            assert!(!child("k", other.as_bytes()).continues(&known), "{other}");
        }
    }

    #[test]
    fn child_with_another_form_is_the_same_by_its_id_and_key() {
        let known = child("k", PAYLOAD);
        assert!(child("k", br#"{"a":1,"b":[1,{"c":null}],"new":null}"#).continues(&known));
        assert!(child("renamed", PAYLOAD).continues(&known));
        let other_key = ChildRecord::of(&["k", "1"], None, Some("other"), PAYLOAD);
        assert!(!other_key.continues(&known));
        let other_id = ChildRecord::of(&["k", "1"], Some("id"), Some("key"), PAYLOAD);
        assert!(!other_id.continues(&known));
    }

    #[test]
    fn children_are_announced_after_the_others_or_as_the_same_again() {
        let all = ["0", "1", "2", "3"].map(|payload| child("k", payload.as_bytes())).to_vec();
        let announce = |found: &[ChildRecord], place, children| match announce_children(
            Some(found.to_vec()),
            place,
            children,
        ) {
            Edit::Write(records, announced) => (Some(records), announced),
            Edit::Keep(announced) => (None, announced),
        };
        let same = |before| Some(ChildAnnouncement { before, changed: false });
        let Edit::Write(written, new) = announce_children(None, 0, &all) else {
            panic!("nothing is written")
        };
        assert_eq!(written, all);
        assert_eq!(new, same(0));
        assert_eq!(announce(&all[..2], 2, &all[2..]), (Some(all.clone()), same(0)));
        assert_eq!(announce(&all[..3], 1, &all[1..]), (Some(all.clone()), same(2)));
        assert_eq!(announce(&all, 1, &all[1..3]), (None, same(2)));
        let renamed = [child("renamed", b"3")];
        assert_eq!(announce(&all, 3, &renamed), (None, Some(ChildAnnouncement { before: 1, changed: true })));
        // Another child, and a child after a gap.
        assert_eq!(announce(&all, 2, &all[..1]), (None, None));
        assert_eq!(announce(&all[..1], 2, &all[2..]), (None, None));
    }

    #[test]
    fn payloads_that_are_not_json_are_not_compared() {
        assert!(child("k", b"\x00one").continues(&child("k", b"\x00two")));
    }
}
