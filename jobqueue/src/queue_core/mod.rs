//! One queue of a storage without its message type, and the [`Queue`] of a message type around it.
//!
//! The modules [`send`](crate::send), [`receive`](crate::receive), [`delivery`](crate::delivery) and
//! [`dead_letters`](crate::dead_letters) build on this module; `send`, `receive` and `dead_letters` add
//! methods to `Queue`.

mod backpressure;
mod blobs;
mod errors;
mod fit;
mod idle;
mod open;
mod queue;
mod settings_cache;
mod typed;

pub(crate) use backpressure::wait_until_below;
pub(crate) use blobs::{
    CopiedBlobs, CopyName, MAX_COPIED_BYTES, MAX_DOUBTS_WITH_OWN_BLOBS, copy_blobs, remove_blobs,
};
pub(crate) use errors::{RESCAN_SECONDS, UNCERTAIN_END, no_renewer, payload_error};
pub(crate) use fit::{check_length, fit};
pub(crate) use idle::Idle;
pub(crate) use open::{ONCE, create_queue, ensure};
pub(crate) use queue::{MAX_DELAY, QueueCore, QueueCoreOptions};
pub use typed::Queue;
pub(crate) use typed::QueueOf;
