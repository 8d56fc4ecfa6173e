//! Chooses the shard of a message, and encodes the shard in the message's id.

use sha2::{Digest, Sha256};

use super::map::Shard;
use crate::{MessageId, MessageRef};

/// Returns the index of the shard of a key among `shards`. It is the same in every process and release.
pub(super) fn by_key(key: &str, shards: usize) -> usize {
    let digest = Sha256::digest(key.as_bytes());
    let number = digest.iter().take(8).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    (number % (shards.max(1) as u64)) as usize
}

/// Returns the id that callers see: `<generation>.<shard>.<id within the shard>`.
pub(super) fn outer_id(shard: &Shard, inner: &MessageId) -> MessageId {
    MessageId::new(format!("{}.{}.{inner}", shard.generation, shard.number))
}

/// Returns the generation and the number of a message's shard, and the message as the shard knows it. For an id that is not
/// of this form the home queue answers.
pub(super) fn inner(message: &MessageRef) -> (u32, u32, MessageRef) {
    let parse = || {
        let mut parts = message.id.as_str().splitn(3, '.');
        let (generation, number) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let id = MessageId::new(parts.next()?);
        Some((generation, number, MessageRef { id, receipt: message.receipt.clone() }))
    };
    parse().unwrap_or_else(|| (0, 0, message.clone()))
}
