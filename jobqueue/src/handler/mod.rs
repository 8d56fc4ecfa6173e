//! Handlers: async functions of a message and of extracted arguments.
//!
//! An extractor ([`FromJob`]) obtains each argument after the message from the [`Job`]. The
//! [guide](crate::guide::handlers) has an example with state, layers and extractors.

pub(crate) mod erased;
mod extract;
mod function;
mod job;
mod service;

pub use extract::{Extension, ExtractError, FromJob, State, States};
pub use function::Handler;
pub use job::Job;
pub use service::JobService;

pub(crate) use erased::{Registration, recover};
