//! Compares two JSON values and returns a line for each difference.

use serde_json::Value;

use super::Differences;

/// Returns the differences: `- place: pinned` for a missing or former value, `+ place: found` for a new
/// value.
pub(super) fn lines(pinned: &Value, found: &Value) -> Differences {
    let mut lines = Vec::new();
    compare("", Some(pinned), Some(found), &mut lines);
    Differences(lines)
}

fn compare(place: &str, pinned: Option<&Value>, found: Option<&Value>, lines: &mut Vec<String>) {
    match (pinned, found) {
        (Some(Value::Object(pinned)), Some(Value::Object(found))) => {
            for (name, value) in pinned {
                compare(&member(place, name), Some(value), found.get(name), lines);
            }
            for (name, value) in found.iter().filter(|(name, _)| !pinned.contains_key(*name)) {
                compare(&member(place, name), None, Some(value), lines);
            }
        }
        (Some(Value::Array(pinned)), Some(Value::Array(found))) => {
            for index in 0..pinned.len().max(found.len()) {
                compare(&format!("{place}[{index}]"), pinned.get(index), found.get(index), lines);
            }
        }
        (pinned, found) if pinned == found => {}
        (pinned, found) => {
            lines.extend(pinned.map(|value| format!("- {place}: {value}")));
            lines.extend(found.map(|value| format!("+ {place}: {value}")));
        }
    }
}

fn member(place: &str, name: &str) -> String {
    if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") }
}
