//! Chooses the shard that is next in turn.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::name::QueueName;
use crate::sync::lock;

/// One in this many gets asks a suspect shard, which did not answer last time, before the others; the rest
/// ask it after them.
const SUSPECT_FIRST_EVERY: usize = 4;

/// The turns of each queue's shards. Gets and puts have their own, as has each queue: with a common counter,
/// calls in a regular rhythm, such as a get and a put, would pass over the same shards each time.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<QueueName, QueueTurns>>);

#[derive(Debug, Default)]
struct QueueTurns {
    puts: usize,
    gets: usize,
    /// The shards that gets have passed over beyond one for each get.
    skipped: usize,
}

/// The turn of a get.
#[derive(Debug, Clone, Copy)]
pub(super) struct GetTurn {
    /// The place of the shard that is asked first, modulo the number of shards.
    pub(super) place: usize,
    pub(super) asks_suspect_first: bool,
}

impl Turns {
    fn with<T>(&self, queue: &QueueName, action: impl FnOnce(&mut QueueTurns) -> T) -> T {
        let mut turns = lock(&self.0);
        action(turns.entry(queue.clone()).or_default())
    }

    /// Returns the place of the shard that a put tries first, modulo the number of shards.
    pub(super) fn put(&self, queue: &QueueName) -> usize {
        self.with(queue, |turns| {
            let place = turns.puts;
            turns.puts = place.wrapping_add(1);
            place
        })
    }

    pub(super) fn get(&self, queue: &QueueName) -> GetTurn {
        self.with(queue, |turns| {
            let place = turns.gets.wrapping_add(turns.skipped);
            turns.gets = turns.gets.wrapping_add(1);
            GetTurn { place, asks_suspect_first: turns.gets.is_multiple_of(SUSPECT_FIRST_EVERY) }
        })
    }

    /// Lets the next get begin with the shard behind the `asked` shards of this get.
    pub(super) fn skip_asked(&self, queue: &QueueName, asked: usize) {
        self.with(queue, |turns| turns.skipped = turns.skipped.wrapping_add(asked - 1));
    }
}
