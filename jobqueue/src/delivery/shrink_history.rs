//! Shortens the history of a message that has no space for all of it: the framework's notes for operators,
//! which grow with every failure. Attributes of a producer or a handler are never removed.

use bytes::Bytes;

use super::past_dead_letters::shorten_past_dead_letters;
use crate::envelope::{Envelope, History, StoredReference};
use crate::error::{Error, ErrorKind};
use crate::job::outcome::printable;
use crate::queue_core::{QueueCore, fit};
use crate::settings::MessageEncoding;

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

/// [Renders](fit) the envelope. While the text is too large, makes space: by `make_space` as long as that
/// returns true, then by shortening the history.
pub(crate) fn fit_shortened(
    core: &QueueCore,
    envelope: &mut Envelope,
    encoding: MessageEncoding,
    mut make_space: impl FnMut(&mut Envelope) -> bool,
) -> Result<(String, Option<(StoredReference, Bytes)>), Error> {
    let mut steps = STEPS.iter();
    loop {
        let payload = envelope.payload.clone();
        match fit(core, envelope, encoding, u64::MAX) {
            Err(error) if error.kind() == ErrorKind::TooLarge => {
                envelope.payload = payload;
                if !make_space(envelope) {
                    let Some(step) = steps.next() else { return Err(error) };
                    step(&mut envelope.history);
                }
            }
            fitted => return fitted,
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
        let mut lengths = Vec::new();
        for step in STEPS {
            step(&mut history);
            lengths.push(history.last_error.as_ref().map(|error| error.chars().count()));
        }
        assert_eq!(lengths, [Some(501), Some(501), Some(501), Some(501), Some(101), None]);
        assert_eq!(history.attempts, 3);
        assert_eq!(history.past.as_deref(), Some("[]"));
    }
}
