//! Texts that show the state and the counts of batches to people.

use super::{BatchDetail, BatchOverview};

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
        state(self.finished, self.sealed.then_some(have_ended))
    }

    /// Returns the number of dead children, as text: `3+` if there may be more, `?` if none is known.
    pub fn dead_text(&self) -> String {
        at_least(self.dead, self.dead_is_exact)
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
        state(self.finished, self.sealed.then_some(self.waits_for_continuation()))
    }

    /// Returns the number of dead children, as text: `3+` if there may be more, `?` if none is known.
    pub fn dead_text(&self) -> String {
        at_least(self.dead, self.dead_is_exact)
    }
}

fn at_least(number: u64, is_exact: bool) -> String {
    match (number, is_exact) {
        (0, false) => "?".to_owned(),
        (number, true) => number.to_string(),
        (number, false) => format!("{number}+"),
    }
}

/// Returns a state in words. `have_children_ended` is `None` while the batch is not sealed.
fn state(is_finished: bool, have_children_ended: Option<bool>) -> &'static str {
    match (is_finished, have_children_ended) {
        (true, _) => "finished",
        (false, Some(true)) => "waits for its continuation",
        (false, Some(false)) => "waits for its children",
        (false, None) => "waits for its sender",
    }
}
