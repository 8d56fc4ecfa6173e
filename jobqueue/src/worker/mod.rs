//! The worker: fetches messages, runs handlers, settles the deliveries, and stops without losing a message.
//!
//! ```text
//!  poller (one per queue) ──► deliveries ──► executor: decode ─► admit ─► handler ─► settle
//!        ▲                     event, report ◄──────────────────────────│────────┘
//!        └──── free slots ◄─────────────────────────────────────────────┘   shutdown: stop fetching ─ wait ─ cancel and release
//! ```
//!
//! [`Worker::builder`] collects handlers, shared state and settings. A handler's [`Context`] gives it
//! checkpoints, cancellation and queues for further messages. [`Event`](crate::Event)s and the final
//! [`Report`] describe the results.

mod access;
mod activity;
mod background;
mod builder;
mod deliveries;
mod health;
mod limits;
mod options;
mod pacing;
mod poller;
mod presence_task;
mod report;
mod shutdown;
mod start;
mod state;
#[cfg(test)]
mod tests;

pub use crate::delivery::{CheckpointOutcome, Context, DeadLettered};
#[cfg(feature = "schedule")]
pub(crate) use background::BackgroundContext;
pub use builder::WorkerBuilder;
pub use health::{HealthReport, QueueHealth, WorkerHealth, WorkerPhase};
pub use limits::{HandlerLimits, QueueLimits, RateLimit};
pub use pacing::CircuitBreaker;
pub use report::Report;
pub use shutdown::shutdown_signal;
#[doc(hidden)]
pub use shutdown::shutdown_signal_then;
pub use start::Worker;
