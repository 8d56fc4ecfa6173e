//! Selects which of several dead letters of one job a pass deals with.

use std::collections::HashSet;
use std::time::SystemTime;

use super::letter::DeadLetterEntry;
use super::pass::{Held, PassAction};
use crate::envelope::{EventDigest, Sha256Digest};
use crate::queue::dead_letter::{DeathOf, UNREADABLE_KIND};

/// The role of a letter in the pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// The first of its job.
    First,
    /// A copy of one that was dealt with.
    Duplicate,
    /// Of a job that was put back by this pass, and perhaps has died again since.
    Leave,
}

/// The letters that a pass has dealt with.
#[derive(Debug, Default)]
pub(super) struct Seen {
    deaths: HashSet<DeathOf>,
    put_back: HashSet<Key>,
}

impl Seen {
    /// Tells what a letter is. What a pass puts back may die at once and lie here again: only a letter that was there before the
    /// pass `began`, or that is of a death that was dealt with, is a duplicate.
    pub(super) fn turn(&self, held: &Held, began: Option<SystemTime>) -> Turn {
        if death(held).is_some_and(|death| self.deaths.contains(&death)) {
            return Turn::Duplicate;
        }
        let key = Key::of(held);
        let was_there = began.is_some_and(|began| held.inserted < began);
        match (self.put_back.contains(&key), was_there, key) {
            (false, ..) => Turn::First,
            (true, true, Key::Event(_)) => Turn::Duplicate,
            // Nobody can tell a copy of a text from another message.
            (true, true, Key::Text(_)) => Turn::First,
            (true, false, _) => Turn::Leave,
        }
    }

    /// Notes that a letter was dealt with, and whether its job is in its queue again.
    pub(super) fn done(&mut self, held: &Held, action: PassAction) {
        self.deaths.extend(death(held));
        if action == PassAction::PutBack {
            self.put_back.insert(Key::of(held));
        }
    }
}

/// The content of a letter besides its end.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Key {
    Event(EventDigest),
    /// A text that is no event.
    Text(Sha256Digest),
}

impl Key {
    fn of(held: &Held) -> Self {
        match &held.entry {
            DeadLetterEntry::Event(event) if *event.kind != *UNREADABLE_KIND => Self::Event(event.digest()),
            DeadLetterEntry::Event(event) => Self::Text(event.payload.digest()),
            DeadLetterEntry::External => Self::Text(Sha256Digest::of(held.letter.text.as_bytes())),
        }
    }
}

fn death(held: &Held) -> Option<DeathOf> {
    match &held.entry {
        DeadLetterEntry::Event(event) => DeathOf::of(event),
        DeadLetterEntry::External => None,
    }
}
