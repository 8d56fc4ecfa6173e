//! The blob names of a batch, and the tree of its markers.
//!
//! | event | blob, below the id of the batch | after a crash |
//! |---|---|---|
//! | begun | `token`: the secret from which the tokens in the children's headers are made | a restart reads it |
//! | children announced, before they are sent | `names/<leaf>`: digests of the children with these numbers | a restart announces the same ones, and sends them as copies |
//! | children certainly sent | `cursor`: their number | a restart begins behind them |
//! | end of the sending job handed over | `handover/<index>` in its batch: the batches through which this child ends, in their order | the next attempt of the job seals the batch, or leaves it out |
//! | sealed | `plan`: the number of children and the continuation, written once | a restart marks the groups that no child can complete |
//! | a copy runs, or waits | `claim/<who>`: see `claim`; none for most first deliveries | the message itself, or a copy that has waited |
//! | a child has ended | `0/<leaf>/<place>`: its result, or its failure (with metadata that says so) | its message is delivered again, does not run, and marks the groups above |
//! | a leaf of 100 children is done | `1/<group>/<place>`; `2/…` for a hundred leaves, and so on up to one | the message of the child that has ended last goes on from there |
//! | continuation certainly sent | `sent` | before this blob, the same message puts another copy, which waits for its turn |
//! | a handler that has handed over to batch n returns | `returned/<index>/<n>` | its message is delivered again, does not run, and ends the child if it was the last to return |
//! | the last continuation returns before such a handler | `continued/<index>`: its result | the handler that returns last ends the child |
//! | the continuation has run | `done` | its message is delivered again and discarded |
//! | swept | `<id>` in a container of its own, for a year: the id is refused, except for the job that has sent the batch; then all others are removed | a later sweep removes the rest |

use sha2::{Digest, Sha256};

use crate::envelope::hash_part;
pub(super) use crate::envelope::headers::batch::{
    ALL as BATCH_HEADERS, BATCH, COPY, INDEX, OF, OF_TOKEN, ON_DEAD, TOKEN,
};
use crate::error::{Error, ErrorKind};
use crate::storage::{BlobName, ContainerName};
use jobqueue_storage::fast::hex::to_hex;

const CONTAINER: &str = "jobqueue-batches";
/// The container of the notes that sweeps leave: lists of batches do not pass them.
const NOTES: &str = "jobqueue-swept-batches";
/// The number of markers in a group, and so the names that are listed when one of them is written.
pub(super) const GROUP_SIZE: u64 = 100;
pub(super) const MAX_CHILDREN: u64 = 100_000_000;

/// The place of the continuation.
pub(super) const THEN: &str = "then";

/// Returns the [`TOKEN`] or [`OF_TOKEN`]: the proof that a batch has made the job `source`, `id` for this place, which is the number of a
/// child or [`THEN`]. In the headers of another job it proves nothing, so that an application may copy headers.
pub(super) fn token(secret: &str, place: &str, source: &str, id: &str) -> String {
    let mut hash = Sha256::new();
    for part in [secret, place, source, id] {
        hash_part(&mut hash, part);
    }
    to_hex(&hash.finalize()[..16])
}

/// The metadata key on a handover: the batch with whose continuation the child ends.
pub(super) const INNER: &str = "inner";
/// The metadata key on a plan: the number of children.
pub(super) const CHILDREN: &str = "children";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BatchId(String);

impl BatchId {
    pub(super) fn new(id: &str) -> Result<Self, Error> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_".contains(&b);
        if id.is_empty() || id.len() > 128 || !id.bytes().all(plain) {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a batch's id has 1 to 128 ASCII letters, digits, dashes and underscores",
            ));
        }
        Ok(Self(id.to_owned()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn blob(&self, rest: &str) -> Result<BlobName, Error> {
        Ok(BlobName::new(container()?, format!("{}/{rest}", self.0))?)
    }

    /// Returns the name of the note that a sweep leaves of the batch.
    pub(super) fn note(&self) -> Result<BlobName, Error> {
        Ok(BlobName::new(notes()?, &self.0)?)
    }

    /// Returns the name of the marker of child or group `index` at a level.
    pub(super) fn marker(&self, level: u32, index: u64) -> Result<BlobName, Error> {
        self.blob(&format!("{level}/{:08}/{:02}", index / GROUP_SIZE, index % GROUP_SIZE))
    }

    /// Returns the name of the record with the digests of a group's children.
    pub(super) fn roster(&self, group: u64) -> Result<BlobName, Error> {
        self.blob(&format!("names/{group:08}"))
    }

    /// Returns the prefix of the names of a group's markers.
    pub(super) fn group(&self, level: u32, group: u64) -> String {
        format!("{}/{level}/{group:08}/", self.0)
    }
}

pub(super) fn container() -> Result<ContainerName, Error> {
    Ok(ContainerName::new(CONTAINER)?)
}

pub(super) fn notes() -> Result<ContainerName, Error> {
    Ok(ContainerName::new(NOTES)?)
}

/// Splits the name of a blob into the id of its batch and the rest; `None` for a blob of another program.
pub(super) fn batch_of(name: &str) -> Option<(&str, &str)> {
    name.split_once('/').filter(|(id, _)| BatchId::new(id).is_ok())
}

/// Returns the number of the child whose marker this is: `<id>/0/<leaf>/<place>`.
pub(super) fn child_of(marker: &str) -> Option<u64> {
    let mut parts = marker.rsplit('/');
    let (place, leaf) = (parts.next()?.parse::<u64>().ok()?, parts.next()?.parse::<u64>().ok()?);
    leaf.checked_mul(GROUP_SIZE)?.checked_add(place)
}

/// Returns the number of markers at a level in a batch of `children`.
pub(super) fn width(children: u64, level: u32) -> u64 {
    (0..level).fold(children, |width, _| width.div_ceil(GROUP_SIZE))
}

/// Returns the number of markers of a complete group at a level. Before the batch is sealed, `children` is `None`,
/// and every group counts as full.
pub(super) fn group_size(children: Option<u64>, level: u32, group: u64) -> u64 {
    children.map_or(GROUP_SIZE, |children| {
        (width(children, level).saturating_sub(group * GROUP_SIZE)).min(GROUP_SIZE)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_narrows_to_one() {
        assert_eq!(
            (width(10_001, 0), width(10_001, 1), width(10_001, 2), width(10_001, 3)),
            (10_001, 101, 2, 1)
        );
        assert_eq!(group_size(Some(10_001), 0, 100), 1);
        assert_eq!(group_size(Some(10_001), 0, 99), 100);
        assert_eq!(group_size(None, 0, 7), 100);
    }

    #[test]
    fn an_id_cannot_leave_its_folder() {
        for bad in ["", "a/b", "..", "a b", &"x".repeat(129)] {
            assert!(BatchId::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn tokens_do_not_change_between_releases() {
        assert_eq!(token("secret", "0/7", "/shop", "1"), "1b2f316fa2f039c3d40d1947ad7a1db2");
    }
}
