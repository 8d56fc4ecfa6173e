//! Where a message goes, and how its identity says where it is.

use std::fmt;

use sha2::{Digest, Sha256};

use super::map::Shard;
use crate::storage::{MessageId, MessageRef};

/// Shards that were not polled; the text names them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unpolled(pub(super) String);

impl fmt::Display for Unpolled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unpolled {}

/// The place of a key among `shards`: the same in every process and release.
pub(super) fn by_key(key: &str, shards: usize) -> usize {
    let digest = Sha256::digest(key.as_bytes());
    let number = digest.iter().take(8).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    (number % (shards.max(1) as u64)) as usize
}

/// `<generation>.<shard>.<id within the shard>`.
pub(super) fn outer_id(shard: &Shard, inner: &MessageId) -> MessageId {
    MessageId::new(format!("{}.{}.{inner}", shard.generation, shard.number))
}

/// The shard's generation and number, and the message within it.
pub(super) fn inner(message: &MessageRef) -> Option<(u32, u32, MessageRef)> {
    let mut parts = message.id.as_str().splitn(3, '.');
    let generation = parts.next()?.parse().ok()?;
    let number = parts.next()?.parse().ok()?;
    let id = MessageId::new(parts.next()?);
    Some((generation, number, MessageRef { id, receipt: message.receipt.clone() }))
}
