//! Texts that show the state and the counts of batches to people.

use super::{BatchDetail, BatchOverview, JobPlace};

impl BatchOverview {
    /// Returns the number of children that are done, as text: `3+` if there may be more.
    pub fn done_text(&self) -> String {
        at_least(self.done, self.ended_is_exact)
    }

    /// Returns the number of children that have failed, as text: `3+` if there may be more, `?` if none is
    /// known.
    pub fn failed_text(&self) -> String {
        at_least(self.failed, self.ended_is_exact)
    }

    /// Returns the state in words.
    pub fn state(&self) -> &'static str {
        let have_ended = self.children.is_some_and(|all| self.done + self.failed >= all);
        state(self.finished, self.sealed.then_some(have_ended), self.continuation_is_dead)
    }

    /// Returns the number of dead letters that block the batch, children or its continuation, as text: `3+`
    /// if there may be more, `?` if none is known.
    pub fn dead_text(&self) -> String {
        dead_text(self.dead, self.dead_is_exact, self.continuation_is_dead)
    }

    /// Returns whether a dead letter certainly blocks the batch.
    pub fn has_dead_letters(&self) -> bool {
        self.dead > 0 || self.continuation_is_dead == Some(true)
    }
}

impl BatchDetail {
    /// Returns the number of children that have not ended and are missing from [`open`](Self::open).
    pub fn more_open(&self) -> u64 {
        self.children.saturating_sub(self.done + self.failed).saturating_sub(self.open.len() as u64)
    }

    /// Returns whether all children have ended but the continuation has not: it waits, runs or is a dead
    /// letter.
    pub fn waits_for_continuation(&self) -> bool {
        self.sealed && !self.finished && self.done + self.failed >= self.children
    }

    /// Returns the state in words.
    pub fn state(&self) -> &'static str {
        let waits = self.waits_for_continuation();
        state(self.finished, self.sealed.then_some(waits), self.continuation_is_dead())
    }

    /// Returns whether the continuation is a dead letter, and blocks the batch; `None` if it is not known.
    pub fn continuation_is_dead(&self) -> Option<bool> {
        match &self.continuation {
            _ if !self.waits_for_continuation() => Some(false),
            Some(found) if found.is_gone || found.place != JobPlace::Unseen => {
                Some(found.place == JobPlace::Dead)
            }
            _ => None,
        }
    }

    /// Returns the number of dead letters that block the batch, children or its continuation, as text: `3+`
    /// if there may be more, `?` if none is known.
    pub fn dead_text(&self) -> String {
        dead_text(self.dead, self.dead_is_exact, self.continuation_is_dead())
    }
}

fn at_least(number: u64, is_exact: bool) -> String {
    match (number, is_exact) {
        (0, false) => "?".to_owned(),
        (number, true) => number.to_string(),
        (number, false) => format!("{number}+"),
    }
}

fn dead_text(children: u64, is_exact: bool, is_continuation_dead: Option<bool>) -> String {
    let continuation = u64::from(is_continuation_dead == Some(true));
    at_least(children + continuation, is_exact && is_continuation_dead.is_some())
}

/// Returns a state in words. `have_children_ended` is `None` while the batch is not sealed.
fn state(
    is_finished: bool,
    have_children_ended: Option<bool>,
    is_continuation_dead: Option<bool>,
) -> &'static str {
    match (is_finished, have_children_ended) {
        (true, _) => "finished",
        (false, Some(_)) if is_continuation_dead == Some(true) => "its continuation is a dead letter",
        (false, Some(true)) => "waits for its continuation",
        (false, Some(false)) => "waits for its children",
        (false, None) => "waits for its sender",
    }
}
