//! The default codec: JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use super::finite::check_finite;
use super::place::path_at;
use super::{Codec, CodecError};

/// A codec that writes payloads as JSON text. It is the default codec of messages.
///
/// Encoding refuses numbers that JSON cannot express (`NaN`, infinities): `serde_json` would write `null`,
/// which a reader takes for a missing number. Decoding refuses more than 127 levels of lists and objects in
/// what it reads; encoding does not count them. An error names the field and the expected type, and never
/// quotes the payload.
#[derive(Debug, Clone, Copy, Default)]
pub struct Json;

/// The number of levels that `serde_json` reads: its recursion limit is 128.
const MAX_DEPTH: usize = 127;

impl Codec for Json {
    const CONTENT_TYPE: &'static str = "application/json";

    fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, CodecError> {
        // Most messages fit into this capacity, so the buffer does not grow while they are written.
        let mut text = Vec::with_capacity(512);
        if let Err(error) = serde_json::to_writer(&mut text, value) {
            return Err(no_form(error));
        }
        // Most messages contain no `null`, and need no second pass.
        if text.windows(4).any(|word| word == b"null")
            && let Err(field) = check_finite(value)
        {
            return Err(not_finite(&field));
        }
        Ok(text)
    }

    fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
        // Checks UTF-8 once for the whole payload. serde_json would check each string.
        match std::str::from_utf8(bytes) {
            Ok(text) => match serde_json::from_str(text) {
                Ok(value) => Ok(value),
                Err(error) => Err(unreadable(text, &error)),
            },
            Err(_) => Err(CodecError::new("the payload is not UTF-8")),
        }
    }
}

// The error paths are separate functions, so that they are not compiled again for each message type.

fn no_form(error: serde_json::Error) -> CodecError {
    CodecError::with_source("the message cannot be written as JSON", error)
}

fn not_finite(field: &str) -> CodecError {
    let field = if field.is_empty() { String::new() } else { format!(" in the field `{field}`") };
    CodecError::new(format!("the message has a number{field} that JSON cannot express: NaN or infinity"))
}

fn unreadable(text: &str, error: &serde_json::Error) -> CodecError {
    CodecError::new(describe(text, error))
}

/// Describes an error in the JSON by its field and kind. serde's text can quote the offending value, and
/// payloads must not reach a log.
fn describe(text: &str, error: &serde_json::Error) -> String {
    let said = error.to_string();
    let path = path_at(text, error.line(), error.column());
    let (field, within) = match path.as_str() {
        "" => ("the payload".to_owned(), String::new()),
        path => (format!("the field `{path}` of the payload"), format!(" in `{path}`")),
    };
    if let Some(name) = named(&said, "missing field `") {
        return format!("the payload lacks the field `{name}`{within}");
    }
    if named(&said, "duplicate field `").is_some() {
        return format!("{field} occurs twice");
    }
    if said.starts_with("number out of range") {
        return format!("{field} is a number out of range");
    }
    if said.starts_with("recursion limit exceeded") {
        return format!("the payload has more than {MAX_DEPTH} levels of lists and objects");
    }
    match error.classify() {
        Category::Data => match expected(&said) {
            Some(expected) => format!("{field} does not have the type of the message: expected {expected}"),
            None => format!("{field}: unexpected value for this message type"),
        },
        Category::Eof => "the payload ends too early".to_owned(),
        Category::Io | Category::Syntax => {
            format!("the payload is not JSON (line {}, column {})", error.line(), error.column())
        }
    }
}

/// Returns the name in an error whose text begins with `beginning`. The names of fields come from the
/// program, not from the payload, so an error may show them.
fn named<'t>(text: &'t str, beginning: &str) -> Option<&'t str> {
    text.strip_prefix(beginning)?.split('`').next()
}

/// Returns the expectation in serde's error about a type or a value. It, too, comes from the program.
fn expected(said: &str) -> Option<&str> {
    let own = ["invalid type: ", "invalid value: ", "invalid length "];
    if !own.iter().any(|beginning| said.starts_with(beginning)) {
        return None;
    }
    let (_, expected) = said.rsplit_once(", expected ")?;
    expected.rsplit_once(" at line ").map(|(expected, _)| expected)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Order {
        #[allow(dead_code, reason = "only read")]
        number: f64,
        #[serde(default)]
        #[allow(dead_code, reason = "only read")]
        lines: Vec<Line>,
        #[serde(default)]
        #[allow(dead_code, reason = "only read")]
        more: BTreeMap<String, Line>,
    }

    #[derive(Debug, Deserialize)]
    struct Line {
        #[allow(dead_code, reason = "only read")]
        cents: u32,
    }

    #[test]
    fn payload_with_too_many_levels_is_said_to_have_them() {
        let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert!(Json::decode::<serde_json::Value>(nested(127).as_bytes()).is_ok());
        let refused = Json::decode::<serde_json::Value>(nested(128).as_bytes()).unwrap_err().to_string();
        assert_eq!(refused, "the payload has more than 127 levels of lists and objects");
    }

    #[test]
    fn error_names_the_field_and_quotes_no_value() {
        for (text, said) in [
            (r#"{"number":1e400}"#, "the field `number` of the payload is a number out of range"),
            (r#"{"number":1,"number":2}"#, "the field `number` of the payload occurs twice"),
            (r#"{"lines":[]}"#, "the payload lacks the field `number`"),
            (
                r#"{"number":"secret, expected x"}"#,
                "the field `number` of the payload does not have the type of the message: expected f64",
            ),
            (
                "{\"number\":1,\n \"lines\": [ {\"cents\":1}, {\"cents\":-1} ]}",
                "the field `lines[1].cents` of the payload does not have the type of the message: expected u32",
            ),
            (
                r#"{"number":1,"lines":[{"cents":{"a":1}}]}"#,
                "the field `lines[0].cents` of the payload does not have the type of the message: expected u32",
            ),
            (r#"{"number":1,"lines":[{"cents":1},{}]}"#, "the payload lacks the field `cents` in `lines[1]`"),
            (
                r#"{"number":1,"more":{"a \"b":{"cents":true}}}"#,
                r#"the field `more["a \"b"].cents` of the payload does not have the type of the message: expected u32"#,
            ),
            (
                r#"{"number":1,"lines":7}"#,
                "the field `lines` of the payload does not have the type of the message: expected a sequence",
            ),
            ("7", "the payload does not have the type of the message: expected struct Order"),
            ("{", "the payload ends too early"),
            ("{x", "the payload is not JSON (line 1, column 2)"),
        ] {
            assert_eq!(Json::decode::<Order>(text.as_bytes()).unwrap_err().to_string(), said, "{text}");
        }
    }

    #[test]
    fn nesting_of_any_depth_does_not_overflow_the_stack() {
        for (depth, inner) in [(100, "1"), (100_000, "1"), (100_000, "")] {
            let junk = format!("{}{inner}{}", r#"[{"a":"#.repeat(depth), "}]".repeat(depth));
            let text = format!(r#"{{"junk":{junk},"number":"x"}}"#);
            let thread = std::thread::Builder::new().stack_size(256 * 1024);
            let decoded =
                thread.spawn(move || Json::decode::<Order>(text.as_bytes())).unwrap().join().unwrap();
            let said = decoded.unwrap_err().to_string();
            let is_json = !inner.is_empty();
            assert_eq!(said.contains("the field `number`"), is_json, "{depth} {inner:?}: {said}");
        }
    }

    #[test]
    fn path_length_is_bounded() {
        let text = format!(r#"{}"{}":"#, "[".repeat(1_000), "a".repeat(1_000));
        assert_eq!(path_at(&text, 1, text.len()), "[0]".repeat(128));
        let key = path_at(&format!(r#"{{"{}":1}}"#, "a".repeat(1_000)), 1, 1_005);
        assert_eq!(key, format!("[\"{}\"]", "a".repeat(64)));
    }

    #[test]
    fn numbers_that_are_not_finite_are_refused() {
        #[derive(Debug, Serialize)]
        struct Limits {
            low: Option<f64>,
            inner: Inner,
        }
        #[derive(Debug, Serialize)]
        enum Inner {
            Rates { all: Vec<f32> },
            Nothing(Option<u8>, ()),
        }
        let none = Limits { low: None, inner: Inner::Nothing(None, ()) };
        assert_eq!(Json::encode(&none).unwrap(), br#"{"low":null,"inner":{"Nothing":[null,null]}}"#);
        let said = |value: &Limits| Json::encode(value).unwrap_err().to_string();
        let low = said(&Limits { low: Some(f64::INFINITY), ..none });
        assert_eq!(
            low,
            "the message has a number in the field `low` that JSON cannot express: NaN or infinity"
        );
        let deep = said(&Limits { low: None, inner: Inner::Rates { all: vec![1.0, f32::NAN] } });
        assert!(deep.contains("`inner.all`"), "{deep}");
        let bare = Json::encode(&f64::NEG_INFINITY).unwrap_err().to_string();
        assert_eq!(bare, "the message has a number that JSON cannot express: NaN or infinity");
    }

    #[test]
    fn search_for_any_position_does_not_panic() {
        let texts = [
            "",
            "]",
            "{]",
            "[,}",
            r#"{"a""#,
            r#"["\"#,
            "{\"a\":[1,{\"b\":",
            "\u{1F600}",
            "[[[[",
            r#"{"a":1}}}"#,
        ];
        for text in texts {
            for (line, column) in [(0, 0), (1, 0), (1, 3), (1, 99), (9, 1)] {
                let _ = path_at(text, line, column);
            }
        }
    }
}
