//! Chooses the shard of a key, and encodes the shard in a message's id.

use sha2::{Digest, Sha256};

use super::map::Shard;
use crate::{MessageId, MessageRef};

/// Returns the index of a key's shard among `shards`, the same in every process and release.
pub(super) fn by_key(key: &str, shards: usize) -> usize {
    let digest = Sha256::digest(key.as_bytes());
    let number = digest.iter().take(8).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    (number % (shards.max(1) as u64)) as usize
}

/// Returns the id that callers see: `<generation>.<shard>.<id within the shard>`.
pub(super) fn outer_id(shard: &Shard, inner: &MessageId) -> MessageId {
    MessageId::new(format!("{}.{}.{inner}", shard.generation, shard.number))
}

/// Returns the generation and the number of a message's shard, and the message with the id within that shard.
/// An id without this form belongs to the home queue.
pub(super) fn inner(message: &MessageRef) -> (u32, u32, MessageRef) {
    let parse = || {
        let mut parts = message.id.as_str().splitn(3, '.');
        let (generation, number) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let id = MessageId::new(parts.next()?);
        Some((generation, number, MessageRef { id, receipt: message.receipt.clone() }))
    };
    parse().unwrap_or_else(|| (0, 0, message.clone()))
}
