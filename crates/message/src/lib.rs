//! The messages of `jobqueue`: types, validation, codecs and the wire form, without queues and workers.
//!
//! A program can write and read messages with this crate alone; `jobqueue` re-exports its public types and
//! stores the messages. Nothing here performs input or output or starts a task.
//!
//! # Modules
//! The derive macros implement the traits of [`message`] and [`validate`]; [`codec`] turns payloads into
//! bytes and back; [`envelope`] is the CloudEvents event around a payload; [`settings`] reads a queue's
//! settings from its metadata; [`job`] describes a delivery and its outcome; [`error`] is the error of the
//! framework's operations.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod __private;
pub mod codec;
pub mod envelope;
pub mod error;
pub mod job;
pub mod message;
pub mod settings;
pub mod times;
pub mod validate;
