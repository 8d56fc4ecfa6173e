//! The earlier dead letters of a job, stored with the job as a JSON list when it is redriven.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use crate::clock::{parse_rfc3339, rfc3339};
use crate::envelope::{DeadLetterNote, History};
use crate::job::outcome::{Reason, printable};

/// The maximum number of dead letters that are kept. The oldest are dropped first.
const MAX_PAST_DEAD_LETTERS: usize = 10;

/// An earlier dead letter of a job, before it was redriven.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PastDeadLetter {
    /// The reason for dead-lettering.
    #[serde(with = "as_text")]
    pub reason: Reason,
    /// The time of dead-lettering, by the storage's clock; `None` if the dead letter did not contain it.
    #[serde(with = "as_rfc3339")]
    pub time: Option<SystemTime>,
    /// The error with its causes.
    pub error: Option<String>,
    /// The number of failed attempts.
    pub attempts: u32,
    /// The dequeue count when it was dead-lettered.
    pub deliveries: u32,
    /// The worker that dead-lettered it.
    pub worker: Option<String>,
}

/// Returns the earlier dead letters of a job, oldest first, without entries that other programs have written.
pub fn past_dead_letters(history: &History) -> Vec<PastDeadLetter> {
    list(history).iter().filter_map(|past| serde_json::from_str(past.get()).ok()).collect()
}

/// Adds the dead letter of a job that is being redriven.
pub(crate) fn add_past_dead_letter(history: &mut History, note: DeadLetterNote) {
    let last = PastDeadLetter {
        reason: Reason::new(&note.reason),
        time: parse_rfc3339(&note.time),
        // Moved rather than copied: a message has only 64 KiB.
        error: history.last_error.take(),
        attempts: history.attempts,
        deliveries: note.deliveries,
        worker: note.worker,
    };
    let mut past = list(history);
    past.extend(to_raw_value(&last));
    let excess = past.len().saturating_sub(MAX_PAST_DEAD_LETTERS);
    history.past = serde_json::to_string(&past[excess..]).ok();
}

/// Keeps the latest `count` dead letters, with `chars` characters of each error. Removes entries that other
/// programs have written.
pub(super) fn shorten_past_dead_letters(history: &mut History, count: usize, chars: usize) {
    if history.past.is_none() {
        return;
    }
    let mut past = past_dead_letters(history);
    past.drain(..past.len().saturating_sub(count));
    for letter in &mut past {
        letter.error = letter.error.take().map(|error| printable(&error, chars));
    }
    history.past = serde_json::to_string(&past).ok();
}

fn list(history: &History) -> Vec<Box<RawValue>> {
    history.past.as_deref().and_then(|past| serde_json::from_str(past).ok()).unwrap_or_default()
}

impl PastDeadLetter {
    /// Returns [`time`](Self::time) as RFC 3339 writes it, in UTC: `2026-11-22T06:15:00.000Z`.
    pub fn time_text(&self) -> Option<String> {
        self.time.map(rfc3339)
    }
}

/// An unknown time is an empty text.
mod as_rfc3339 {
    use std::time::SystemTime;

    use serde::{Deserialize, Deserializer, Serializer};

    use crate::clock::{parse_rfc3339, rfc3339};

    pub(crate) fn serialize<S: Serializer>(
        time: &Option<SystemTime>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&time.map(rfc3339).unwrap_or_default())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<SystemTime>, D::Error> {
        String::deserialize(deserializer).map(|text| parse_rfc3339(&text))
    }
}

mod as_text {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::Reason;

    pub(crate) fn serialize<S: Serializer>(reason: &Reason, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(reason.as_str())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Reason, D::Error> {
        String::deserialize(deserializer).map(|text| Reason::new(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_are_kept_and_external_entries_stay_unchanged() {
        let mut history = History { past: Some(r#"[{"by":"another"}]"#.to_owned()), ..History::default() };
        for attempts in 0..12 {
            history.attempts = attempts;
            let note = DeadLetterNote {
                reason: "rejected".to_owned(),
                queue: "tasks".to_owned(),
                message: None,
                time: "2026-11-21T20:00:00.000Z".to_owned(),
                deliveries: 3,
                worker: None,
            };
            add_past_dead_letter(&mut history, note);
            let has_external_entry = history.past.as_deref().unwrap().contains("another");
            assert_eq!(has_external_entry, attempts < 9, "the oldest of eleven entries is dropped");
        }
        let past = past_dead_letters(&history);
        assert!(past.iter().all(|past| past.time_text().as_deref() == Some("2026-11-21T20:00:00.000Z")));
        assert_eq!(past.iter().map(|past| past.attempts).collect::<Vec<_>>(), (2..12).collect::<Vec<_>>());
        assert!(past.iter().all(|past| past.reason == Reason::REJECTED && past.deliveries == 3));
        history.past = Some("no list".to_owned());
        assert!(past_dead_letters(&history).is_empty());
    }
}
