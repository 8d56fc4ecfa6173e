//! What a message type declares about itself.

pub mod codec;
pub mod key;
pub mod upgrade;

use std::borrow::Cow;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::job::retry::Backoff;
use crate::message::codec::{Codec, CodecError};
use crate::validate::{Validate, Violations};

/// A type whose values travel through a queue. Derive it: `#[derive(QueueMessage)]`.
///
/// The name under which values are stored ([`KIND`](Self::KIND)) and the [`VERSION`](Self::VERSION) of their
/// form are declared, never taken from the Rust type, so that a type can be renamed or moved without
/// losing what waits in queues.
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
    /// The queue that values are sent to unless the caller names another.
    const QUEUE: &'static str;
    /// The durable name of the type, stored with every message.
    const KIND: &'static str;
    /// The version of the form, stored with every message; from 1.
    const VERSION: u32 = 1;
    /// Former names under which values may still be waiting.
    const ALIASES: &'static [&'static str] = &[];
    /// What a queue that is created for this type starts with.
    const DEFAULTS: MessageDefaults = MessageDefaults::new();
    /// How payloads are written.
    type Codec: Codec;

    /// The value of the field marked `key`: what the message is about. It becomes the event's `subject`,
    /// chooses the shard and is what unique work is unique by.
    fn key(&self) -> Option<Cow<'_, str>> {
        None
    }

    /// Reads a payload of `version`, walking the chain of upgrades up to [`VERSION`](Self::VERSION).
    /// Does not validate.
    ///
    /// # Errors
    /// See [`DecodeError`].
    fn decode(version: u32, payload: &[u8]) -> Result<Self, DecodeError> {
        if version != Self::VERSION {
            return Err(DecodeError::unreadable_version(version, Self::VERSION));
        }
        match Self::Codec::decode(payload) {
            Ok(message) => Ok(message),
            Err(error) => Err(DecodeError::Codec(error)),
        }
    }

    /// Returns the versions that [`decode`](Self::decode) reads, oldest first. A payload of another program that does not tell its
    /// version is tried in their order.
    fn versions() -> Vec<u32> {
        vec![Self::VERSION]
    }

    /// Whether messages of this kind are read as this type.
    fn accepts(kind: &str) -> bool {
        kind == Self::KIND || Self::ALIASES.contains(&kind)
    }
}

/// What a message type wishes of its queue; the queue's metadata wins where it says otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessageDefaults {
    /// Failed attempts before a message is dead-lettered, 1–1000.
    pub poison_threshold: Option<u32>,
    /// The lease a message is received with: whole seconds, 1 second to 7 days.
    pub timeout: Option<Duration>,
    /// The delay between attempts.
    pub backoff: Option<Backoff>,
}

impl MessageDefaults {
    /// No wishes.
    pub const fn new() -> Self {
        Self { poison_threshold: None, timeout: None, backoff: None }
    }

    /// Sets the number of failed attempts before a message is dead-lettered.
    #[must_use]
    pub const fn with_poison_threshold(mut self, attempts: u32) -> Self {
        self.poison_threshold = Some(attempts);
        self
    }

    /// Sets the lease.
    #[must_use]
    pub const fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the delay between attempts.
    #[must_use]
    pub const fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = Some(backoff);
        self
    }
}

/// Why a message cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The message breaks rules of its own type.
    #[error("the message is not valid; correct the fields that are named and send it again")]
    Invalid(#[source] Violations),
    /// The codec has no form for it.
    #[error("the message cannot be encoded")]
    Codec(#[source] CodecError),
}

/// Why a payload cannot be read as the message type.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// A newer program wrote it; a worker of that release can read it.
    #[error("the message has version {found}, this program reads up to {newest}; deploy the newer release")]
    NewerVersion {
        /// The version in the message.
        found: u32,
        /// The newest this program knows.
        newest: u32,
    },
    /// It is older than the chain of upgrades reaches.
    #[error("the message has version {found}, and no `upgrade_from` leads from it to version {newest}")]
    OlderVersion {
        /// The version in the message.
        found: u32,
        /// The newest this program knows.
        newest: u32,
    },
    /// The codec cannot read it.
    #[error("the payload cannot be decoded")]
    Codec(#[source] CodecError),
    /// It was read in an older form, and the conversion to the next refused it.
    #[error("the payload of version {from} cannot be converted to version {to}")]
    Upgrade {
        /// The version converted from.
        from: u32,
        /// The version converted to.
        to: u32,
        /// What `TryFrom` said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It was read, and breaks rules of the type.
    #[error("the message is not valid")]
    Invalid(#[source] Violations),
}

impl DecodeError {
    /// The error for a version that is not the present one and has no upgrade.
    pub fn unreadable_version(found: u32, newest: u32) -> Self {
        if found > newest {
            Self::NewerVersion { found, newest }
        } else {
            Self::OlderVersion { found, newest }
        }
    }

    /// Whether a newer release of the program can read the message.
    pub fn is_newer_version(&self) -> bool {
        matches!(self, Self::NewerVersion { .. })
    }
}
