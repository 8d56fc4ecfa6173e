//! Ids of jobs in the journal: those that the framework makes are UUIDs, and take 16 bytes instead of 36.

use std::time::{Duration, SystemTime};

use uuid::Uuid;

/// An id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Id<'a> {
    /// An id that is written as a UUID in lower case, with hyphens.
    Uuid(Uuid),
    Text(&'a str),
}

impl<'a> Id<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let is_uuid = text.len() == 36 && !text.bytes().any(|byte| byte.is_ascii_uppercase());
        match is_uuid.then(|| Uuid::try_parse(text)) {
            Some(Ok(uuid)) => Self::Uuid(uuid),
            _ => Self::Text(text),
        }
    }

    /// Returns a number that is the same for the same id in every version of this crate: filters in the storage depend on it.
    pub(super) fn hash(&self) -> u64 {
        match self {
            Self::Uuid(uuid) => {
                let (high, low) = uuid.as_u64_pair();
                mix(high ^ mix(low))
            }
            // FNV-1a.
            Self::Text(text) => mix(text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
            })),
        }
    }

    /// Returns the time at which the id was made, by the clock of its maker, if it tells one: a UUID of version 7.
    pub(super) fn made(&self) -> Option<SystemTime> {
        let Self::Uuid(uuid) = self else { return None };
        let (seconds, nanos) = uuid.get_timestamp().filter(|_| uuid.get_version_num() == 7)?.to_unix();
        SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanos))
    }
}

impl std::fmt::Display for Id<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Uuid(uuid) => uuid.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// Spreads a number over 64 bits: the last step of SplitMix64.
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_stay_what_they_were() {
        let uuid = "0199f3ad-1a2b-7c3d-8e4f-0123456789ab";
        let (upper, simple) = (uuid.to_uppercase(), uuid.replace('-', ""));
        for text in [uuid, &upper, &simple, "order-7", "", "größer"] {
            assert_eq!(Id::new(text).to_string(), text);
        }
        assert!(matches!(Id::new(uuid), Id::Uuid(_)));
        assert!(matches!(Id::new(&upper), Id::Text(_)));
        assert!(Id::new(uuid).made().is_some() && Id::new("order-7").made().is_none());
    }

    /// Filters that are in a storage were written with these numbers.
    #[test]
    fn hashes_never_change() {
        assert_eq!(Id::new("order-7").hash(), ORDER);
        assert_eq!(Id::new("0199f3ad-1a2b-7c3d-8e4f-0123456789ab").hash(), UUID);
    }

    const ORDER: u64 = 0x3ab5_4128_8711_96ac;
    const UUID: u64 = 0xde61_1dea_d6af_5144;
}
