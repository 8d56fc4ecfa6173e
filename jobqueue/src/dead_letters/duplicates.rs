//! Decides which of several dead letters of one job a pass handles.

use std::collections::HashSet;
use std::time::SystemTime;

use super::held::{Held, PassAction};
use super::letter::DeadLetterEntry;
use crate::delivery::DeathOf;
use crate::envelope::{EventDigest, Sha256Digest, UNREADABLE_KIND};

/// The role of a letter in the pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LetterRole {
    First,
    /// A copy of a letter that was handled.
    Duplicate,
    /// A letter of a job that this pass has put back, and that may have been dead-lettered again.
    Leave,
}

/// The letters that a pass has handled.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    deaths: HashSet<DeathOf>,
    put_back: HashSet<Key>,
}

impl Seen {
    /// Returns the role of a letter. A job that the pass has put back may be dead-lettered again at once. So a letter
    /// is a duplicate only if it existed before the pass `began`, or if it records an end that was handled.
    pub(crate) fn role(&self, held: &Held, began: Option<SystemTime>) -> LetterRole {
        if death(held).is_some_and(|death| self.deaths.contains(&death)) {
            return LetterRole::Duplicate;
        }
        let key = Key::of(held);
        let was_there = began.is_some_and(|began| held.inserted < began);
        match (self.put_back.contains(&key), was_there, key) {
            (false, ..) => LetterRole::First,
            (true, true, Key::Event(_)) => LetterRole::Duplicate,
            // A copy of a text cannot be distinguished from another message.
            (true, true, Key::Text(_)) => LetterRole::First,
            (true, false, _) => LetterRole::Leave,
        }
    }

    /// Records that a letter was handled, and whether its job is in its queue again.
    pub(crate) fn done(&mut self, held: &Held, action: PassAction) {
        self.deaths.extend(death(held));
        if action == PassAction::PutBack {
            self.put_back.insert(Key::of(held));
        }
    }
}

/// The content of a letter without its end.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Event(EventDigest),
    /// A text that is not an event.
    Text(Sha256Digest),
}

impl Key {
    pub(super) fn of(held: &Held) -> Self {
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
