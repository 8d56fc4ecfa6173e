//! Items that the derive macros' output uses. They are not part of the public API: any of them may change in
//! any release.

pub use core::option::Option;
pub use core::time::Duration;
pub use std::borrow::Cow;

pub use serde::Serialize;
pub use serde::de::DeserializeOwned;

pub use crate::codec::Json;
pub use crate::job::Backoff;
pub use crate::message::key::{Key, key};
pub use crate::message::{MessageDefaults, QueueMessage, Upgrade};
pub use crate::validate::rules::{
    Limit, Measure, Measured, Pattern, Provides, Ranged, Text, custom, email, length, non_empty, pattern,
    url, whole,
};
pub use crate::validate::{Path, Validate, Violations};
