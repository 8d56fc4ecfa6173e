//! Settings of a queue, read from its metadata.
//!
//! The result is usable whatever the metadata contains: a malformed or absurd value gives the default and a warning,
//! never a panic and never a threshold of zero that would dead-letter everything.

pub(crate) use jobqueue_message::settings::DEFAULT_LEASE;
#[doc(inline)]
pub use jobqueue_message::settings::{
    JobLimits, MessageEncoding, Metadata, QueueSettings, SettingOverrides, SettingWarning,
};
