//! A fast path that reads an event in exactly the form in which this framework writes it.
//!
//! Nearly every message has the same attributes in the same order, and their texts have no escapes. All other
//! texts are left to [`members`](super::members::members), which returns the same members for the texts that
//! this module reads.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::members::Members;

/// Reads the members of an event. Returns `None` for a text in another form, whether or not it is an event.
pub(super) fn members(json: &str) -> Option<Members<'_>> {
    let mut rest = Rest(json);
    let mut found = Members { spec_version: Some(Cow::Borrowed("1.0")), ..Members::default() };
    rest.skip("{\"specversion\":\"1.0\"")?;
    found.id = rest.text(",\"id\":\"")?;
    found.source = rest.text(",\"source\":\"")?;
    found.kind = rest.text(",\"type\":\"")?;
    found.time = rest.text(",\"time\":\"")?;
    found.key = rest.text(",\"key\":\"")?;
    found.content_type = rest.text(",\"datacontenttype\":\"")?;
    found.version = rest.digits(",\"schemaversion\":")?;
    found.traceparent = rest.text(",\"traceparent\":\"")?;
    rest.skip(",\"data\":")?;
    found.data = Some(raw(rest.0.strip_suffix('}')?)?);
    Some(found)
}

/// The part of a text that has not been read yet.
struct Rest<'a>(&'a str);

impl<'a> Rest<'a> {
    fn skip(&mut self, text: &str) -> Option<()> {
        self.0 = self.0.strip_prefix(text)?;
        Some(())
    }

    /// Reads a text if `name` comes next. Returns `None` if the text has escapes or no end.
    fn text(&mut self, name: &str) -> Option<Option<Cow<'a, str>>> {
        if self.skip(name).is_none() {
            return Some(None);
        }
        let (text, rest) = self.0.split_once('"')?;
        // The loop has no early exit, so that the compiler can vectorise it.
        if text.bytes().fold(false, |suspect, byte| suspect | (byte == b'\\') | (byte < b' ')) {
            return None;
        }
        self.0 = rest;
        Some(Some(Cow::Borrowed(text)))
    }

    /// Reads a number if `name` comes next. Returns `None` if it is not a whole number.
    fn digits(&mut self, name: &str) -> Option<Option<&'a str>> {
        if self.skip(name).is_none() {
            return Some(None);
        }
        let end = self.0.bytes().position(|byte| !byte.is_ascii_digit())?;
        let (digits, rest) = self.0.split_at_checked(end)?;
        self.0 = rest;
        let is_number = digits == "0" || !digits.is_empty() && !digits.starts_with('0');
        is_number.then_some(Some(digits))
    }
}

/// Returns the JSON value without surrounding white space; `None` if the text is not exactly one value.
fn raw(json: &str) -> Option<&RawValue> {
    serde_json::from_str(json).ok()
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::super::{Envelope, JsonText, Payload, members as any};
    use super::*;

    const EVENT: &str = r#"{"specversion":"1.0","id":"1","source":"/a","type":"b","time":"2026-01-01T00:00:00Z","key":"k","datacontenttype":"application/json","schemaversion":12,"traceparent":"00-1-2-01","data":{"a":[1,"}"]}}"#;

    fn shown(members: &Members<'_>) -> impl Debug + PartialEq + use<> {
        let Members { spec_version, id, source, kind, time, key, content_type, traceparent, .. } = members;
        let texts = [spec_version, id, source, kind, time, key, content_type, traceparent];
        let texts = texts.map(|text| text.as_deref().map(str::to_owned));
        let raw = [members.version, members.data.map(RawValue::get)].map(|raw| raw.map(str::to_owned));
        (texts, raw, members.others.len())
    }

    /// Returns whether this module reads the text, and checks that it then reads the same as the general
    /// reader.
    #[track_caller]
    fn is_read(json: &str) -> bool {
        let Some(own) = members(json) else { return false };
        let any = any::members(json).unwrap_or_else(|error| panic!("{json}: {error}"));
        assert_eq!(shown(&own), shown(&any), "{json}");
        true
    }

    #[test]
    fn events_in_the_written_form_are_read_here() {
        let data = JsonText::check(bytes::Bytes::from_static(b"{\"to\":\"a\\n\xc3\xa9\"}")).unwrap();
        let mut event = Envelope::new("1", "/shop", "mail", Payload::Json(data));
        assert!(is_read(&event.to_json().unwrap()));
        event.time = Some("2026-01-01T00:00:00Z".into());
        event.key = Some("caf\u{e9}".into());
        event.content_type = Some("application/json".into());
        event.traceparent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into());
        assert!(is_read(&event.to_json().unwrap()));
        assert!(is_read(EVENT));
        event.key = Some("a\"b".into());
        assert!(!is_read(&event.to_json().unwrap()), "the key has an escape");
        event.key = None;
        event.history.attempts = 1;
        assert!(!is_read(&event.to_json().unwrap()), "the event has a history");
    }

    #[test]
    fn members_after_the_payload_are_not_part_of_it() {
        let open = &EVENT[..EVENT.len() - 1];
        for end in [r#","more":1}"#, r#","data":1}"#, "", ",}", "]}", "}}"] {
            assert!(!is_read(&format!("{open}{end}")), "{end}");
        }
    }

    /// Texts with a few bytes changed, inserted, removed or moved: if this module reads one, it reads the
    /// same as the general reader.
    #[test]
    fn changed_texts_are_read_as_the_general_reader_reads_them() {
        const BYTES: &[u8] = b"\"\\{}[]:,0019 \n\x01eE+-.ntf\xc3\xa9";
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 33) as usize % below
        };
        let mut read = 0;
        for _ in 0..200_000 {
            let mut text = EVENT.as_bytes().to_vec();
            for _ in 0..=next(3) {
                let (at, byte) = (next(text.len()), BYTES[next(BYTES.len())]);
                match next(4) {
                    0 => text[at] = byte,
                    1 => text.insert(at, byte),
                    2 => drop(text.remove(at)),
                    _ => {
                        let end = (at + next(60)).min(text.len());
                        let part: Vec<u8> = text.drain(at..end).collect();
                        let to = next(text.len().max(1));
                        text.splice(to..to, part);
                    }
                }
            }
            if let Ok(text) = std::str::from_utf8(&text) {
                read += usize::from(is_read(text.trim_end()));
            }
        }
        assert!(read > 10_000, "{read} texts were read");
    }
}
