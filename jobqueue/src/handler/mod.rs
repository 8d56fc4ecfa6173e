//! Handlers: async functions of a message and of further extracted arguments.
//!
//! The module knows messages, job information and outcomes; it knows nothing of queues, leases or storages. An
//! extractor ([`FromJob`]) takes each further argument of a handler from the [`Job`].

mod erased;
mod extract;
mod function;
mod job;
mod service;

pub use extract::{Extension, ExtractError, FromJob, State, States};
pub use function::Handler;
pub use job::Job;
pub use service::JobService;

pub(crate) use erased::{Registration, recover};
