//! The shards of a queue, in generations; stored as a JSON document.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::fast::hex::to_hex;
use crate::name::{DEAD_LETTER_SUFFIX, NameError, QueueName};

/// One physical queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Shard {
    /// The number of the generation; 0 is the home queue.
    pub(super) generation: u32,
    pub(super) number: u32,
    pub(super) account: String,
}

impl Shard {
    pub(super) fn physical(&self, logical: &QueueName) -> Result<QueueName, NameError> {
        if self.generation == 0 {
            return Ok(logical.clone());
        }
        QueueName::new(format!("{}-s{}v{}", stem(logical), self.number, self.generation))
    }
}

/// The maximum length of a stem; leaves room for `-s255v99999`, and for the suffix of that shard's
/// dead-letter queue.
const MAX_STEM: usize = 45;

/// Returns the stem of the names of a queue's shards: the queue's name or, if that is too long, its beginning
/// and a hash of the whole name.
fn stem(logical: &QueueName) -> String {
    let name = logical.as_str();
    if name.len() <= MAX_STEM {
        return name.to_owned();
    }
    let hash = to_hex(&Sha256::digest(name.as_bytes())[..8]);
    format!("{}-{hash}", name[..MAX_STEM - 17].trim_end_matches('-'))
}

/// Returns whether `name` is the name of a shard or of a shard's dead-letter queue, not of a logical queue.
pub(super) fn is_shard(name: &QueueName) -> bool {
    let name = name.as_str();
    let name = name.strip_suffix(DEAD_LETTER_SUFFIX).unwrap_or(name);
    let numbers = name.rsplit_once("-s").and_then(|(_, rest)| rest.split_once('v'));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    numbers.is_some_and(|(shard, generation)| digits(shard) && digits(generation))
}

/// A generation: shards that were created together. Each key belongs to one shard of a generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Generation {
    pub(super) number: u32,
    /// The time at which a newer generation replaced this one, in seconds since 1970; 0 for the newest.
    pub(super) superseded: u64,
    /// The account of each shard. An empty list means only the home queue.
    pub(super) accounts: Vec<String>,
}

/// All generations whose messages are still delivered, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Map {
    pub(super) generations: Vec<Generation>,
}

impl Map {
    /// Returns all shards from which messages are delivered, the home queue first.
    pub(super) fn shards(&self, home: &str) -> Vec<Shard> {
        let first = Shard { generation: 0, number: 0, account: home.to_owned() };
        let rest = self.generations.iter().flat_map(|generation| {
            (0..).zip(&generation.accounts).map(|(number, account)| Shard {
                generation: generation.number,
                number,
                account: account.clone(),
            })
        });
        std::iter::once(first).chain(rest).collect()
    }

    /// Returns the shards to which new messages go.
    pub(super) fn targets(&self, home: &str) -> Vec<Shard> {
        let newest = self.generations.last().filter(|newest| !newest.accounts.is_empty());
        let number = newest.map_or(0, |newest| newest.number);
        self.shards(home).into_iter().filter(|shard| shard.generation == number).collect()
    }

    /// Returns the map with a new generation.
    pub(super) fn grown(&self, accounts: Vec<String>, now: SystemTime) -> Self {
        let mut generations = self.generations.clone();
        let number = generations.last().map_or(1, |newest| newest.number + 1);
        if let Some(newest) = generations.last_mut() {
            newest.superseded = seconds(now).max(1);
        }
        generations.push(Generation { number, superseded: 0, accounts });
        Self { generations }
    }

    /// Returns the map without these generations.
    pub(super) fn without(&self, gone: &[u32]) -> Self {
        let left = self.generations.iter().filter(|generation| !gone.contains(&generation.number));
        Self { generations: left.cloned().collect() }
    }
}

pub(super) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_names_differ_from_queue_names() {
        let name = |text: &str| QueueName::new(text).unwrap();
        for shard in ["orders-s3v12", "orders-s3v12-poison"] {
            assert!(is_shard(&name(shard)), "{shard}");
        }
        for queue in ["orders-small", "orders-sv1"] {
            assert!(!is_shard(&name(queue)), "{queue}");
        }
    }

    #[test]
    fn each_shard_has_a_dead_letter_queue_however_long_the_name() {
        let shard = Shard { generation: 99_999, number: 255, account: "a".to_owned() };
        for length in 3..=63 {
            let physical = shard.physical(&QueueName::new("q".repeat(length)).unwrap()).unwrap();
            assert!(physical.dead_letter().is_ok(), "{physical}");
        }
    }
}
