//! The names that nearly all promises use.

pub(super) use futures_util::future::join_all;
pub(super) use jobqueue::settings::Metadata;
pub(super) use jobqueue::storage::{
    ExpiredReceipt, GetMessages, MAX_VISIBILITY, MessageRef, PutBlob, PutMessage, StoreErrorKind as K,
    UpdateMessage,
};

pub(super) use super::check::{refused, refused_unless};
pub(super) use super::fixture::{
    LONG_TIMEOUT, STALE, TestBlob, TestQueue, lease_id, near, secs, with_receipt,
};
pub(super) use super::{Broken, Deviation, Subject};
