//! Dead letters as text: tables of several, and the details of one with its history.

use jobqueue_admin::{ErrorGroup, RawJob, RawPayload};

use crate::output::{Column, fields, sanitize_json};
use crate::text::{cell, clean, last, optional};

pub(super) const LETTERS: &[Column<RawJob>] = &[
    ("ID", |letter| cell(&letter.id)),
    ("KIND", |letter| cell(&letter.kind)),
    ("KEY", |letter| optional(letter.key.as_deref())),
    ("REASON", |letter| optional(letter.dead.as_ref().map(|dead| dead.reason.as_str()))),
    ("DIED", |letter| optional(letter.dead.as_ref().and_then(|dead| dead.time.as_deref()))),
    ("#ATTEMPTS", |letter| letter.attempts.to_string()),
    ("LAST ERROR", |letter| last(letter.last_error.as_deref().or(letter.problem.as_deref()))),
];

pub(super) const ERRORS: &[Column<ErrorGroup>] = &[
    ("#COUNT", |group| group.count.to_string()),
    ("FINGERPRINT", |group| cell(&group.fingerprint)),
    ("KIND", |group| cell(&group.kind)),
    ("REASON", |group| cell(&group.reason)),
    ("FIRST", |group| optional(group.first.as_deref())),
    ("LAST", |group| optional(group.last.as_deref())),
    ("VERSIONS", |group| {
        let versions: Vec<_> = group.versions.iter().map(u32::to_string).collect();
        if versions.is_empty() { "-".to_owned() } else { versions.join(",") }
    }),
    ("SAMPLE", |group| cell(&group.sample.id)),
    ("ERROR", |group| clean(&group.error)),
];

pub(super) fn details(letter: &RawJob) -> String {
    let text = |text: Option<&str>| text.map_or_else(|| "-".to_owned(), clean);
    let dead = letter.dead.as_ref();
    let mut shown = fields(&[
        ("id", clean(&letter.id)),
        ("source", clean(&letter.source)),
        ("kind", clean(&letter.kind)),
        ("version", letter.version.map_or_else(|| "-".to_owned(), |version| version.to_string())),
        ("key", text(letter.key.as_deref())),
        ("reason", text(dead.map(|dead| dead.reason.as_str()))),
        ("died", text(dead.and_then(|dead| dead.time.as_deref()))),
        ("worker", text(dead.and_then(|dead| dead.worker.as_deref()))),
        ("attempts", letter.attempts.to_string()),
        ("deliveries", dead.map_or(0, |dead| dead.deliveries).to_string()),
        ("sent", text(letter.sent.as_deref())),
        ("trace", text(letter.trace.as_deref())),
        ("last error", text(letter.last_error.as_deref())),
        ("problem", text(letter.problem.as_deref())),
        ("payload", format!("{} bytes; --payload prints them", letter.payload.bytes())),
    ]);
    for (name, value) in &letter.headers {
        shown.push_str(&format!("header {} = {}\n", clean(name), clean(value)));
    }
    for past in &letter.past {
        let json = serde_json::to_string(past).unwrap_or_default();
        shown.push_str(&format!("earlier dead letter {}\n", clean(&json)));
    }
    shown
}

pub(super) fn payload_text(payload: &RawPayload) -> String {
    let hidden =
        || format!("{} bytes that are not text; --output json prints them in base64", payload.bytes());
    match payload {
        RawPayload::None => String::new(),
        RawPayload::Json(json) => sanitize_json(json.get()),
        RawPayload::Text(text) => clean(text),
        RawPayload::Bytes(bytes) => std::str::from_utf8(bytes).map_or_else(|_| hidden(), clean),
        _ => hidden(),
    }
}
