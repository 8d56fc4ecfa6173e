//! Decides which of several dead letters of one job a pass handles.

use std::collections::{HashMap, HashSet};
use std::time::SystemTime;

use super::held::{HeldLetter, PassAction};
use super::revive::fence_base;
use crate::delivery::DeathOf;
use crate::envelope::{EventDigest, Sha256Digest, UNREADABLE_KIND};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LetterRole {
    /// The first letter of its job, which the pass handles.
    First,
    /// A copy of a letter that was handled.
    Duplicate,
    /// A letter of a job that this pass has put back: the job may have been dead-lettered again.
    Leave,
}

/// The letters that a pass has handled. A later pass uses them to recognise copies.
#[derive(Debug)]
pub struct SeenLetters {
    /// True if a letter may have copies: if a worker dies between storing the letter and deleting the
    /// message, another worker stores the letter again. A storage that moves messages to its own dead letters
    /// makes no copies.
    may_have_copies: bool,
    /// The time at which the first pass received its first letters, by the storage's clock.
    pub received: Option<SystemTime>,
    deaths: HashSet<DeathOf>,
    /// The jobs that are in their queue again, with the least fence base of the message that was put there.
    put_back: HashMap<LetterKey, u64>,
}

impl SeenLetters {
    pub(crate) fn new(may_have_copies: bool) -> Self {
        Self { may_have_copies, received: None, deaths: HashSet::new(), put_back: HashMap::new() }
    }

    /// Returns the role of a letter. A job that the pass has put back may be dead-lettered again immediately.
    /// So a letter is a duplicate only if it records a dead-lettering that was handled, or if it existed
    /// before the pass `began` and its fence base is too small for the message that was put back. The time
    /// alone does not suffice: the clocks of two shards may differ, and a clock may be set back.
    pub(crate) fn role(&self, held: &HeldLetter, began: Option<SystemTime>) -> LetterRole {
        if held.letter.death.as_ref().is_some_and(|death| self.deaths.contains(death)) {
            return LetterRole::Duplicate;
        }
        let was_there = began.is_some_and(|began| held.inserted < began);
        self.role_of(LetterKey::of(held), was_there, held.fence_base())
    }

    fn role_of(&self, key: LetterKey, was_there: bool, fence_base: u64) -> LetterRole {
        let put_back = self.put_back.get(&key).copied();
        let is_older = put_back.is_some_and(|least| fence_base < least);
        match (put_back.is_some(), was_there, key) {
            (false, ..) => LetterRole::First,
            (true, true, LetterKey::Event(_)) if self.may_have_copies && is_older => LetterRole::Duplicate,
            (true, true, LetterKey::Event(_)) => LetterRole::Leave,
            // A copy of a text cannot be distinguished from another message.
            (true, true, LetterKey::Text(_)) => LetterRole::First,
            (true, false, _) => LetterRole::Leave,
        }
    }

    /// Records that a letter was handled, and whether its job is in its queue again.
    pub(crate) fn done(&mut self, held: &HeldLetter, action: PassAction) {
        self.deaths.extend(held.letter.death.clone());
        if matches!(action, PassAction::PutBack | PassAction::ReportPutBack) {
            // Each message that was put there has at least the base that the time of its letter's lease gives.
            let least = fence_base(held.fence_base(), held.letter.deliveries, held.leased_at);
            self.put_back.insert(LetterKey::of(held), least);
        }
    }
}

/// The identity of a letter's content, the same for every dead-lettering of the job.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) enum LetterKey {
    Event(EventDigest),
    /// A text that is not an event.
    Text(Sha256Digest),
}

impl LetterKey {
    pub(super) fn of(held: &HeldLetter) -> Self {
        match &held.event {
            Some(event) if *event.kind != *UNREADABLE_KIND => Self::Event(event.digest()),
            Some(event) => Self::Text(event.payload.digest()),
            None => Self::Text(Sha256Digest::of(held.letter.text.as_bytes())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::letter::event_of;
    use super::*;

    #[test]
    fn letter_without_copies_is_no_duplicate_whatever_its_time() {
        let key = || {
            let text = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","data":1}"#;
            LetterKey::Event(event_of(text).unwrap().digest())
        };
        for (may_have_copies, role) in [(true, LetterRole::Duplicate), (false, LetterRole::Leave)] {
            let mut seen = SeenLetters::new(may_have_copies);
            assert_eq!(seen.role_of(key(), true, 0), LetterRole::First);
            let least = fence_base(0, 3, SystemTime::UNIX_EPOCH);
            seen.put_back.insert(key(), least);
            assert_eq!(seen.role_of(key(), true, 0), role);
            assert_eq!(seen.role_of(key(), false, 0), LetterRole::Leave);
            assert_eq!(seen.role_of(key(), true, least), LetterRole::Leave);
        }
    }

    #[test]
    fn letter_with_the_largest_fence_base_is_no_duplicate() {
        let event = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","data":1}"#;
        let key = || LetterKey::Event(event_of(event).unwrap().digest());
        let mut seen = SeenLetters::new(true);
        let largest = fence_base(u64::MAX, 3, SystemTime::UNIX_EPOCH);
        seen.put_back.insert(key(), largest);
        assert_eq!(seen.role_of(key(), true, largest), LetterRole::Leave);
    }
}
