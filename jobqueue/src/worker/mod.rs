//! The worker: fetches messages, runs handlers, settles the deliveries, and stops without losing a message.
//!
//! ```text
//!  poller (one per queue) ──► deliveries ──► decode ──► decide ──► handler ──► settle
//!        ▲                     event, report ◄──────────────────────────│────────┘
//!        └──── free slots ◄─────────────────────────────────────────────┘   shutdown: stop fetching ─ wait ─ cancel and release
//! ```
//!
//! [`Worker::builder`] collects handlers, shared state and settings. A handler's [`Context`] gives it checkpoints,
//! cancellation and queues for further messages. [`Event`]s and the final [`Report`] tell what happened.

mod access;
mod activity;
mod background;
mod builder;
mod circuit;
mod completed;
mod completion;
mod context;
mod dead_letter_hook;
mod decide;
mod deliveries;
mod delivery;
mod durable;
mod ending;
mod fetch;
mod health;
mod history;
mod hook;
mod hooks;
mod limits;
mod poller;
mod presence;
mod queue_worker;
mod registry;
mod rejections;
mod report;
mod run;
mod settle;
mod shared;
mod shutdown;
mod single_message_fallback;
mod start;
mod unknown_share;

pub use crate::event::Event;
#[cfg(feature = "schedule")]
pub(crate) use background::BackgroundContext;
pub use builder::WorkerBuilder;
pub use circuit::CircuitBreaker;
pub use context::Context;
pub use dead_letter_hook::DeadLettered;
pub use health::{HealthReport, QueueHealth, WorkerHealth, WorkerPhase};
pub use limits::{HandlerLimits, QueueLimits, RateLimit};
pub use report::Report;
pub use shutdown::shutdown_signal;
pub use start::Worker;

pub(crate) use durable::{COMPLETED, ONCE};
pub(crate) use hook::{Decision, Hook, HookContext, Waiting};
