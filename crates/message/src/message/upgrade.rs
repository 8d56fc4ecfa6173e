//! The chain of upgrades from the payloads of older releases to the newest type. Each link is an [`Upgrade`],
//! and the provided methods of [`QueueMessage`] follow the chain.

use std::fmt;

use crate::message::{DecodeError, QueueMessage};

/// The upgrade to a message type from the type of the version before, and through that type from all older
/// versions. The attribute `upgrade_from = Old` implements it. A manual implementation of [`QueueMessage`]
/// returns it from [`upgrade_from`](QueueMessage::upgrade_from).
///
/// ```
/// use jobqueue::QueueMessage;
/// use jobqueue::message::Upgrade;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, QueueMessage)]
/// #[message(queue = "thumbnails", kind = "thumbnail")]
/// struct ThumbnailV1 {
///     width: u32,
/// }
///
/// #[derive(Serialize, Deserialize, QueueMessage)]
/// #[message(queue = "thumbnails", kind = "thumbnail", version = 2, upgrade_from = ThumbnailV1)]
/// struct Thumbnail {
///     width: u32,
///     height: u32,
/// }
///
/// impl From<ThumbnailV1> for Thumbnail {
///     fn from(old: ThumbnailV1) -> Self {
///         Self { width: old.width, height: old.width }
///     }
/// }
///
/// assert_eq!(Thumbnail::versions(), [1, 2]);
/// // The attribute expands to this.
/// let upgrade: Upgrade<Thumbnail> = Upgrade::of::<ThumbnailV1>();
/// # let _ = upgrade;
/// ```
pub struct Upgrade<M> {
    /// The version of the older type.
    version: u32,
    decode: fn(u32, &[u8]) -> Result<M, DecodeError>,
    pub(super) content_type: fn(u32) -> Option<&'static str>,
    pub(super) versions: fn() -> Vec<u32>,
    pub(super) kinds: fn() -> Vec<&'static str>,
    pub(super) original_kind: fn() -> &'static str,
}

impl<M: QueueMessage> Upgrade<M> {
    /// Returns the upgrade from the type of the version before. `Old` may itself have an upgrade, so a chain
    /// may have any length.
    pub fn of<Old>() -> Self
    where
        Old: QueueMessage,
        M: TryFrom<Old>,
        M::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        Self {
            version: Old::VERSION,
            decode: decode_through::<M, Old>,
            content_type: Old::content_type,
            versions: Old::versions,
            kinds: Old::kinds,
            original_kind: Old::original_kind,
        }
    }

    /// Decodes a payload of an older version.
    ///
    /// # Errors
    /// See [`DecodeError`]. The error for an unknown version compares it with the version of `M`, not of the
    /// link that finds it.
    pub(super) fn decode(&self, version: u32, payload: &[u8]) -> Result<M, DecodeError> {
        // A version between two types of the chain belongs to no type. It must not be reported as newer than
        // the older of them.
        if version > self.version {
            return Err(DecodeError::unreadable_version(version, M::VERSION));
        }
        (self.decode)(version, payload)
    }
}

impl<M> fmt::Debug for Upgrade<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upgrade").field("version", &self.version).finish_non_exhaustive()
    }
}

fn decode_through<M, Old>(version: u32, payload: &[u8]) -> Result<M, DecodeError>
where
    Old: QueueMessage,
    M: QueueMessage + TryFrom<Old>,
    M::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
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
