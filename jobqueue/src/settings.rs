//! Settings of a queue, read from its metadata.
//!
//! The result is usable whatever the metadata contains: a malformed or absurd value yields the default and a
//! warning, never a panic, and never a threshold of zero, which would dead-letter every message.

pub(crate) use jobqueue_message::settings::DEFAULT_LEASE;
#[doc(inline)]
pub use jobqueue_message::settings::{
    JobLimits, MessageEncoding, Metadata, QueueSettings, SettingOverrides, SettingWarning,
};
