//! Shortens the history of a message that has no space for all of it: the framework's notes for operators,
//! which grow with every failure. Attributes of a producer or a handler are never removed.

use super::past_dead_letters::shorten_past_dead_letters;
use crate::envelope::History;
use crate::job::outcome::printable;

type TrimStep = fn(&mut History);

/// The steps, in order of increasing loss.
const STEPS: [TrimStep; 6] = [
    |history| shorten(history, 500),
    |history| shorten_past_dead_letters(history, 10, 200),
    |history| shorten_past_dead_letters(history, 1, 200),
    // An empty list still shows that the job was redriven.
    |history| history.past = history.past.take().map(|_| "[]".to_owned()),
    |history| shorten(history, 100),
    |history| history.last_error = None,
];

/// The steps that are left for a message.
pub(crate) struct HistoryTrim(std::slice::Iter<'static, TrimStep>);

impl HistoryTrim {
    pub(crate) fn new() -> Self {
        Self(STEPS.iter())
    }

    /// Takes the next step. Returns false if there is none.
    pub(crate) fn next_step(&mut self, history: &mut History) -> bool {
        match self.0.next() {
            Some(step) => {
                step(history);
                true
            }
            None => false,
        }
    }
}

fn shorten(history: &mut History, chars: usize) {
    history.last_error = history.last_error.take().map(|error| printable(&error, chars));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_error_outlives_past_dead_letters() {
        let mut history = History {
            attempts: 3,
            last_error: Some("e".repeat(2_000)),
            past: Some("[]".to_owned()),
            ..History::default()
        };
        let mut trim = HistoryTrim::new();
        let mut lengths = Vec::new();
        while trim.next_step(&mut history) {
            lengths.push(history.last_error.as_ref().map(|error| error.chars().count()));
        }
        assert_eq!(lengths, [Some(501), Some(501), Some(501), Some(501), Some(101), None]);
        assert_eq!(history.attempts, 3);
        assert_eq!(history.past.as_deref(), Some("[]"));
    }
}
