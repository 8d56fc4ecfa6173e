//! Repeatable runs: all randomness of a thread comes from a seed, and processes are stopped and killed.
//!
//! Use them on a current-thread runtime on paused time, with the library's clock from tokio
//! ([`TokioClock`](crate::memory::TokioClock)) and leases renewed on the same runtime
//! ([`virtual_time`](crate::WorkerBuilder::virtual_time)).

pub use crate::entropy::seeded::{Seeding, seed};
pub use crate::task::process::Process;
