//! Handlers: async functions of a message and whatever else they ask for.
//!
//! Knows messages, what is known about a job, and outcomes; knows nothing of queues, leases or storages. What a handler
//! asks for besides its message is taken from the [`Job`] by an extractor ([`FromJob`]).

mod erased;
mod extract;
mod function;
mod job;

pub use extract::{Extension, ExtractError, FromJob, State, States};
pub use function::Handler;
pub use job::Job;

pub(crate) use erased::{JobService, Registration, recover};
