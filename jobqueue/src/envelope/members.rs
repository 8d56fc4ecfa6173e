//! The members of a JSON object, read in one pass.
//!
//! Attributes that are texts by their name are read as such at once, since nearly all of them are; everything else stays
//! as it stands. Where a text is something else, the caller reads again without looking at names.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The most attributes an event may have.
const MAX_ATTRIBUTES: usize = 256;

/// A member's value.
pub(super) enum Value<'de> {
    /// A text, without its quotes and escapes.
    Text(Cow<'de, str>),
    /// JSON as it stands.
    Raw(&'de RawValue),
}

/// Members in the order of the object, none of them twice.
pub(super) type List<'de> = Vec<(Cow<'de, str>, Value<'de>)>;

/// Reads an object.
///
/// # Errors
/// What is not an object, has too many attributes for an event, or two of one name.
pub(super) fn members(json: &str) -> serde_json::Result<List<'_>> {
    read(json, is_text).or_else(|_| read(json, |_| false))
}

fn read(json: &str, is_text: fn(&str) -> bool) -> serde_json::Result<List<'_>> {
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let members = Members { is_text }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(members)
}

fn is_text(name: &str) -> bool {
    matches!(
        name,
        "specversion" | "id" | "source" | "type" | "time" | "subject" | "datacontenttype" | "traceparent"
    )
}

struct Members {
    is_text: fn(&str) -> bool,
}

impl<'de> DeserializeSeed<'de> for Members {
    type Value = List<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Members {
    type Value = List<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::with_capacity(16);
        while let Some(Text(name)) = map.next_key()? {
            let value = match (self.is_text)(&name) {
                true => Value::Text(map.next_value::<Text<'_>>()?.0),
                false => Value::Raw(map.next_value()?),
            };
            members.push((name, value));
        }
        if members.len() > MAX_ATTRIBUTES && members.iter().any(|(name, _)| name == "specversion") {
            return Err(de::Error::custom("too many attributes"));
        }
        // Readers disagree on which of two equal names counts; so does an attacker's reader.
        if has_twins(&members) {
            return Err(de::Error::custom("an attribute stands twice"));
        }
        Ok(members)
    }
}

/// A text, borrowed unless it has escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

fn has_twins(members: &List<'_>) -> bool {
    /// Up to so many, comparing each with each is quicker than sorting.
    const FEW: usize = 32;
    if members.len() <= FEW {
        let twin =
            |(at, (name, _)): (usize, &(Cow<'_, str>, _))| members[..at].iter().any(|(n, _)| n == name);
        return members.iter().enumerate().any(twin);
    }
    let mut names: Vec<&str> = members.iter().map(|(name, _)| &**name).collect();
    names.sort_unstable();
    names.windows(2).any(|pair| pair[0] == pair[1])
}
