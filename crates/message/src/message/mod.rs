//! Message types: the trait with which a type declares its queue, kind, version and codec, and the errors of
//! encoding and decoding. The chapter `messages` of the guide in `jobqueue` shows how to declare messages.

pub(crate) mod codec;
pub(crate) mod key;
mod upgrade;

use std::borrow::Cow;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::job::Backoff;
use crate::message::codec::{Codec, CodecError};
use crate::validate::{Validate, Violations};

pub use upgrade::Upgrade;

/// A type whose values are sent through a queue. Implement it with `#[derive(QueueMessage)]`.
///
/// The type declares the name under which values are stored ([`KIND`](Self::KIND)) and the
/// [`VERSION`](Self::VERSION) of their form. Neither is taken from the Rust type, so that the type can be
/// renamed or moved without losing messages that wait in queues.
///
/// ```
/// use jobqueue::QueueMessage;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, Serialize, Deserialize, QueueMessage)]
/// #[message(queue = "thumbnails", kind = "thumbnail.request")]
/// struct Thumbnail {
///     #[message(key, non_empty)]
///     photo: String,
///     #[message(range(16..=4096))]
///     width: u32,
/// }
///
/// assert_eq!(Thumbnail::QUEUE, "thumbnails");
/// assert_eq!(Thumbnail::VERSION, 1);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a queue message",
    label = "this type has no `QueueMessage` implementation",
    note = "add `#[derive(serde::Serialize, serde::Deserialize, QueueMessage)]` and `#[message(queue = \"…\", kind = \"…\")]` to `{Self}`"
)]
pub trait QueueMessage: Validate + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The queue to which values are sent unless the caller names another.
    const QUEUE: &'static str;
    /// The durable name of the type, stored with every message.
    const KIND: &'static str;
    /// The version of the values' form, stored with every message. The first version is 1.
    const VERSION: u32 = 1;
    /// Former names under which values may still wait in queues, oldest first.
    const ALIASES: &'static [&'static str] = &[];
    /// The settings for messages of this type that apply where the queue's metadata sets none.
    const DEFAULTS: MessageDefaults = MessageDefaults::new();
    /// The codec of the payloads.
    type Codec: Codec;

    /// Returns the value of the field marked `key`, which names the subject of the message. It becomes the
    /// event's attribute `key`, selects the shard, and identifies unique work.
    fn key(&self) -> Option<Cow<'_, str>> {
        None
    }

    /// Returns the upgrade from the type of the version before, or `None` if there is no older version. The
    /// attribute `upgrade_from` sets it. The methods below follow the chain of upgrades, and need not be
    /// overridden.
    fn upgrade_from() -> Option<Upgrade<Self>> {
        None
    }

    /// Decodes a payload of `version`, and upgrades it step by step to [`VERSION`](Self::VERSION). Does not
    /// validate it.
    ///
    /// # Errors
    /// See [`DecodeError`].
    fn decode(version: u32, payload: &[u8]) -> Result<Self, DecodeError> {
        if version == Self::VERSION {
            return match Self::Codec::decode(payload) {
                Ok(message) => Ok(message),
                Err(error) => Err(DecodeError::Codec(error)),
            };
        }
        match Self::upgrade_from() {
            Some(upgrade) => upgrade.decode(version, payload),
            None => Err(DecodeError::unreadable_version(version, Self::VERSION)),
        }
    }

    /// Returns the media type of payloads of `version`, or `None` for a version that [`decode`](Self::decode)
    /// cannot read.
    fn content_type(version: u32) -> Option<&'static str> {
        if version == Self::VERSION {
            return Some(Self::Codec::CONTENT_TYPE);
        }
        Self::upgrade_from().and_then(|upgrade| (upgrade.content_type)(version))
    }

    /// Returns the versions that [`decode`](Self::decode) reads, oldest first. A payload of an external
    /// program without a version is read as the newest version that fits.
    fn versions() -> Vec<u32> {
        let mut versions = Self::upgrade_from().map_or_else(Vec::new, |upgrade| (upgrade.versions)());
        versions.push(Self::VERSION);
        versions
    }

    /// Returns the type's first name: its oldest alias, or [`KIND`](Self::KIND) if it was never renamed.
    /// Unique work and schedules without a name use it, so that releases before and after a renaming agree.
    fn original_kind() -> &'static str {
        let alias = Self::ALIASES.first().copied().unwrap_or(Self::KIND);
        match Self::upgrade_from().map(|upgrade| (upgrade.original_kind)()) {
            Some(old) if old != Self::KIND && !Self::ALIASES.contains(&old) => old,
            // The newest type also lists the former names of the older types.
            _ => alias,
        }
    }

    /// Returns the kinds of messages that are read as this type, without duplicates: [`KIND`](Self::KIND),
    /// its aliases, and the kinds of the type from which it is upgraded.
    fn kinds() -> Vec<&'static str> {
        let mut kinds = [&[Self::KIND], Self::ALIASES].concat();
        let older = Self::upgrade_from().map_or_else(Vec::new, |upgrade| (upgrade.kinds)());
        for kind in older {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        kinds
    }
}

/// The settings that a message type declares. For the threshold and the lease, the queue's metadata has
/// priority.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessageDefaults {
    /// The number of failed attempts before a message is dead-lettered, 1–1000.
    pub poison_threshold: Option<u32>,
    /// The lease with which a message is received: whole seconds, 1 second to 7 days.
    pub lease: Option<Duration>,
    /// The time after which a running job is cancelled and its attempt counts as failed.
    pub max_run_time: Option<Duration>,
    /// The delay between attempts.
    pub backoff: Option<Backoff>,
}

impl MessageDefaults {
    /// Returns defaults that set nothing.
    pub const fn new() -> Self {
        Self { poison_threshold: None, lease: None, max_run_time: None, backoff: None }
    }

    /// Sets the number of failed attempts before a message is dead-lettered.
    #[must_use]
    pub const fn with_poison_threshold(mut self, attempts: u32) -> Self {
        self.poison_threshold = Some(attempts);
        self
    }

    /// Sets the lease.
    #[must_use]
    pub const fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Sets the maximum time that a job may run.
    #[must_use]
    pub const fn with_max_run_time(mut self, time: Duration) -> Self {
        self.max_run_time = Some(time);
        self
    }

    /// Sets the delay between attempts.
    #[must_use]
    pub const fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = Some(backoff);
        self
    }
}

/// The reason why a message cannot be encoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The message breaks rules of its type.
    #[error("the message is not valid; correct the fields that are named")]
    Invalid(#[source] Violations),
    /// The codec cannot write the message.
    #[error("the message cannot be encoded")]
    Codec(#[source] CodecError),
}

/// The reason why a payload cannot be decoded as the message type.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// A newer release wrote the payload. A worker of that release can read it.
    #[error("the message has version {found}, this program reads up to {newest}; deploy the newer release")]
    #[non_exhaustive]
    NewerVersion {
        /// The version in the message.
        found: u32,
        /// The newest version that this program knows.
        newest: u32,
    },
    /// The version of the payload is older than any that the chain of upgrades reads.
    #[error("the message has version {found}, and no `upgrade_from` leads from it to version {newest}")]
    #[non_exhaustive]
    OlderVersion {
        /// The version in the message.
        found: u32,
        /// The newest version that this program knows.
        newest: u32,
    },
    /// The media type of the payload differs from the media type of its version.
    #[error("the payload is {found}, the message type reads `{expected}`")]
    #[non_exhaustive]
    MediaType {
        /// The media type of the message in backticks, or a text that says that it is unreadable.
        found: Box<str>,
        /// The media type of the version's codec.
        expected: &'static str,
    },
    /// The codec cannot read the payload.
    #[error("the payload cannot be decoded")]
    Codec(#[source] CodecError),
    /// The payload was decoded as an older version, and its conversion to the next version failed.
    #[error("the payload of version {from} cannot be converted to version {to}")]
    #[non_exhaustive]
    Upgrade {
        /// The version before the conversion.
        from: u32,
        /// The version after the conversion.
        to: u32,
        /// The error of `TryFrom`.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The payload was decoded, but the message breaks rules of its type.
    #[error("the message is not valid")]
    Invalid(#[source] Violations),
}

impl DecodeError {
    /// Returns the error for a version that is neither the newest version nor one with an upgrade.
    pub fn unreadable_version(found: u32, newest: u32) -> Self {
        if found > newest {
            Self::NewerVersion { found, newest }
        } else {
            Self::OlderVersion { found, newest }
        }
    }

    /// Returns whether a newer release of the program can read the message.
    pub fn is_newer_version(&self) -> bool {
        matches!(self, Self::NewerVersion { .. })
    }

    /// Returns whether another program, or this one later, may read the message: the version is newer, or the
    /// codec [says so](CodecError::retryable).
    pub fn is_retryable(&self) -> bool {
        self.is_newer_version() || matches!(self, Self::Codec(error) if error.is_retryable())
    }
}
