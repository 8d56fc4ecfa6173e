#![doc = include_str!("docs/crate.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod __internals;
#[cfg(feature = "azure")]
pub mod azure;
pub mod chunk;
mod claim_check;
pub mod clock;
mod connect;
mod coordination;
pub mod dead_letters;
mod delivery;
pub mod event;
mod group_log;
pub mod guide;
pub mod handler;
mod history;
pub mod job;
mod lease;
mod log;
pub mod maintenance;
pub mod memory;
mod order;
#[cfg(feature = "postgres")]
pub mod postgres;
mod presence;
mod process;
pub mod queue;
mod queue_core;
mod queue_reading;
mod receive;
mod relay;
pub mod runtime;
mod send;
#[cfg(feature = "servicebus")]
pub mod servicebus;
pub mod settings;
pub mod sharded;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod standard_hooks;
pub mod storage;
pub mod trace;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod transactional;
mod undelivered;
mod untyped_queue;
pub mod worker;

// The floors below: `crate::envelope`, `crate::sync` and the others are their modules.
use jobqueue_message::{envelope, error};
use jobqueue_storage::{json_blob, sync};

#[doc(hidden)]
pub use jobqueue_message::__private;
#[doc(inline)]
pub use jobqueue_message::{codec, message, validate};

#[cfg(feature = "schedule")]
pub use coordination::schedule;
pub use coordination::{batch, leader};
pub use error::{Error, ErrorKind};
pub use event::Event;
pub use handler::{Extension, Job, State};
pub use job::{Backoff, JobError, JobInfo, Outcome, Reason};
#[cfg(feature = "derive")]
pub use jobqueue_derive::{QueueMessage, Validate};
pub use message::QueueMessage;
pub use queue::{Delivery, Queue, SendOptions, Sent};
pub use runtime::Runtime;
pub use settings::QueueSettings;
pub use storage::{QueueName, Storage};
/// The token of `tokio-util` by which a job, a worker or an operator's action ends early.
pub use tokio_util::sync::CancellationToken;
pub use validate::Validate;
pub use worker::{Context, Report, Worker, WorkerBuilder, shutdown_signal};
