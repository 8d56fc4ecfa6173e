//! The chain of versions: decodes payloads that an older release wrote.

use crate::message::codec::Codec;
use crate::message::{DecodeError, QueueMessage};

/// Decodes a payload of `version` as `M`: directly when it is the present version, else as `Old` and then through
/// `TryFrom`. `Old` does the same with its own predecessor, so the chain may have any length.
///
/// # Errors
/// See [`DecodeError`]. An unknown version is compared with the newest, wherever in the chain it is met.
pub fn decode_or_upgrade<M, Old>(version: u32, payload: &[u8]) -> Result<M, DecodeError>
where
    M: QueueMessage + TryFrom<Old>,
    M::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    Old: QueueMessage,
{
    if version == M::VERSION {
        return M::Codec::decode(payload).map_err(DecodeError::Codec);
    }
    // A version between two links belongs to no type, and must not be reported as newer than the old link.
    if version > Old::VERSION {
        return Err(DecodeError::unreadable_version(version, M::VERSION));
    }
    let old = Old::decode(version, payload).map_err(|error| match error {
        DecodeError::OlderVersion { found, .. } => DecodeError::OlderVersion { found, newest: M::VERSION },
        error => error,
    })?;
    M::try_from(old).map_err(|error| DecodeError::Upgrade {
        from: Old::VERSION,
        to: M::VERSION,
        source: error.into(),
    })
}

/// Returns the media type of payloads of `version`, along the chain.
pub fn content_type_or_upgrade<M: QueueMessage, Old: QueueMessage>(version: u32) -> Option<&'static str> {
    if version == M::VERSION { Some(M::Codec::CONTENT_TYPE) } else { Old::content_type(version) }
}

/// Returns the versions of `Old` and its predecessors, then that of `M`.
pub fn versions_with_upgrades<M: QueueMessage, Old: QueueMessage>() -> Vec<u32> {
    let mut versions = Old::versions();
    versions.push(M::VERSION);
    versions
}

/// Returns whether `kind` is a name of `M` or of a type from which it can be upgraded.
pub fn accepts_or_upgrades<M: QueueMessage, Old: QueueMessage>(kind: &str) -> bool {
    kind == M::KIND || M::ALIASES.contains(&kind) || Old::accepts(kind)
}

/// Returns the first name that the chain had.
pub fn original_kind_with_upgrades<M: QueueMessage, Old: QueueMessage>() -> &'static str {
    let old = Old::original_kind();
    // Where all versions were renamed, the former name is an alias of the newest.
    if old == M::KIND { M::ALIASES.first().copied().unwrap_or(old) } else { old }
}
