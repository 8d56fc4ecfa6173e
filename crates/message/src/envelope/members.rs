//! The members of a JSON object, read in one pass.
//!
//! The attributes that nearly every event has are read by name into their types. All others are kept
//! unchanged in a list.

use std::borrow::Cow;
use std::fmt;
use std::mem::discriminant;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Members with their raw values, in the order of the object.
pub(super) type RawMembers<'de> = Vec<(Cow<'de, str>, &'de RawValue)>;

/// The members of an object that may be an event; no name occurs twice.
#[derive(Default)]
pub(super) struct Members<'de> {
    pub(super) spec_version: Option<Cow<'de, str>>,
    pub(super) id: Option<Cow<'de, str>>,
    pub(super) source: Option<Cow<'de, str>>,
    pub(super) kind: Option<Cow<'de, str>>,
    pub(super) time: Option<Cow<'de, str>>,
    pub(super) key: Option<Cow<'de, str>>,
    pub(super) content_type: Option<Cow<'de, str>>,
    pub(super) traceparent: Option<Cow<'de, str>>,
    pub(super) version: Option<&'de str>,
    pub(super) data: Option<&'de RawValue>,
    pub(super) others: RawMembers<'de>,
}

/// Reads an object whose members have the types of an event's attributes.
///
/// # Errors
/// An error for text that is not such an object, and for two members of one name.
pub(super) fn members(json: &str) -> serde_json::Result<Members<'_>> {
    serde_json::from_str(json)
}

/// Returns the declared version of an event, or `None` for an object that is not an event. The members may
/// have any types.
///
/// # Errors
/// An error for text that is not an object, and for two members of one name.
pub(super) fn declared_version(json: &str) -> serde_json::Result<Option<&RawValue>> {
    let AnyMembers(members) = serde_json::from_str(json)?;
    Ok(members.iter().find(|(name, _)| name == "specversion").map(|(_, version)| *version))
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum Name<'a> {
    SpecVersion,
    Id,
    Source,
    #[serde(rename = "type")]
    Kind,
    Time,
    Key,
    DataContentType,
    TraceParent,
    SchemaVersion,
    Data,
    #[serde(borrow)]
    Other(Text<'a>),
}

/// A text, borrowed unless it has escapes.
#[derive(Deserialize)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut found, mut seen) = (Members::default(), Vec::with_capacity(10));
        while let Some(name) = map.next_key()? {
            // Checked before the value is read, since that may be `null`. Readers disagree on which of two
            // equal names counts, which an attacker could exploit.
            let attribute = discriminant(&name);
            if !matches!(name, Name::Other(_)) && seen.contains(&attribute) {
                return Err(duplicate_attribute());
            }
            seen.push(attribute);
            match name {
                Name::SpecVersion => found.spec_version = text(&mut map)?,
                Name::Id => found.id = text(&mut map)?,
                Name::Source => found.source = text(&mut map)?,
                Name::Kind => found.kind = text(&mut map)?,
                Name::Time => found.time = text(&mut map)?,
                Name::Key => found.key = text(&mut map)?,
                Name::DataContentType => found.content_type = text(&mut map)?,
                Name::TraceParent => found.traceparent = text(&mut map)?,
                Name::SchemaVersion => found.version = Some(map.next_value::<&RawValue>()?.get()),
                Name::Data => found.data = Some(map.next_value()?),
                Name::Other(Text(name)) => {
                    let value: &RawValue = map.next_value()?;
                    found.others.push((name, value));
                }
            }
        }
        refuse_duplicates(&found.others)?;
        Ok(found)
    }
}

/// Reads an attribute. `null` counts as unset ([JSON format], 2.2).
///
/// [JSON format]: https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md
fn text<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Option<Cow<'de, str>>, A::Error> {
    Ok(map.next_value::<Option<Text<'_>>>()?.map(|Text(text)| text))
}

fn duplicate_attribute<E: de::Error>() -> E {
    E::custom("an attribute occurs twice")
}

fn refuse_duplicates<E: de::Error>(members: &RawMembers<'_>) -> Result<(), E> {
    let mut names: Vec<&str> = members.iter().map(|(name, _)| &**name).collect();
    names.sort_unstable();
    if names.windows(2).any(|pair| pair[0] == pair[1]) { Err(duplicate_attribute()) } else { Ok(()) }
}

/// All members of an object with their raw values; no name occurs twice.
struct AnyMembers<'de>(RawMembers<'de>);

impl<'de> Deserialize<'de> for AnyMembers<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = AnyMembers<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(Text(name)) = map.next_key()? {
                    members.push((name, map.next_value()?));
                }
                refuse_duplicates(&members)?;
                Ok(AnyMembers(members))
            }
        }

        deserializer.deserialize_map(Any)
    }
}
