//! Storage that spreads each queue over several physical queues, in one or several accounts.

pub(crate) use jobqueue_storage::sharded::MAPS;
#[doc(inline)]
pub use jobqueue_storage::sharded::{MAX_SHARDS, Sharded, ShardedBuilder};
