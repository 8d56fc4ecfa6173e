//! Durable, typed background jobs: on an embedded SQLite file out of the box, on Azure Storage queues when one machine
//! is not enough.
//!
//! Annotate a struct, write an async function, run a [`Worker`]. The framework adds what every application otherwise writes
//! by hand: validation, versions, large payloads in blobs, leases that renew themselves, checkpoints, honest attempt
//! counting, dead letters with a reason and a way back, and a shutdown that loses nothing.
#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod __private;
#[cfg(feature = "azure")]
pub mod azure;
mod claim_check;
pub mod codec;
mod composition;
mod connect;
mod coordination;
mod envelope;
pub mod golden;
pub mod guide;
mod handler;
mod lease;
pub mod memory;
mod queue;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod storage;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "sqlite")]
mod transactional;
mod vocabulary;
mod worker;

pub use claim_check::{SweepOptions, Swept, sweep};
pub use coordination::batch::{
    Batch, BatchProgress, BatchSweepOptions, ChildFailure, ChildResult, OnDeadLetters, sweep_batches,
};
pub use coordination::{Leader, Leadership, Missed, Schedule};
pub use handler::{Extension, ExtractError, FromJob, Handler, Job, State, States};
pub use jobqueue_derive::{QueueMessage, Validate};
pub use queue::{
    Backlog, DeadLetter, DeadLetters, Delivery, PastDeadLetter, Purged, Queue, RedriveOptions, Redriven,
    SendOptions, Sent, Unique,
};
pub use storage::Storage;
pub use vocabulary::clock::{Clock, ManualClock, SystemClock};
pub use vocabulary::error::{Error, ErrorKind};
pub use vocabulary::job::JobInfo;
pub use vocabulary::message::{DecodeError, EncodeError, MessageDefaults, QueueMessage};
pub use vocabulary::metadata::Metadata;
pub use vocabulary::name::{BlobName, ContainerName, NameError, QueueName};
pub use vocabulary::outcome::{BoxError, JobError, Outcome, Reason, Verdict};
pub use vocabulary::retry::Backoff;
pub use vocabulary::settings::{MessageEncoding, QueueSettings, SettingOverrides, SettingWarning};
pub use vocabulary::trace::TraceContext;
pub use vocabulary::validate::{Path, Validate, Violation, Violations};
pub use worker::{CircuitBreaker, Context, Event, Report, Worker, WorkerBuilder, shutdown_signal};
