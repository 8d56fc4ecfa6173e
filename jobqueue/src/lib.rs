//! Durable, typed background jobs: on an embedded SQLite file out of the box, on Azure Storage queues when one machine
//! is not enough.
//!
//! Annotate a struct, write an async function, run a [`Worker`]. The framework adds what every application otherwise writes
//! by hand: validation, versions, large payloads in blobs, leases that renew themselves, checkpoints, honest attempt
//! counting, dead letters with a reason and a way back, and a shutdown that loses nothing.
#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod __private;
pub mod admin;
#[cfg(feature = "azure")]
pub mod azure;
mod claim_check;
mod clock;
pub mod codec;
mod connect;
mod coordination;
mod entropy;
mod envelope;
mod error;
mod fifo;
pub mod golden;
pub mod guide;
mod handler;
mod job;
mod json_blob;
mod lease;
pub mod memory;
mod message;
mod name;
mod queue;
mod settings;
pub mod sharded;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod standard_hooks;
mod standard_sweep;
pub mod storage;
mod sync;
mod task;
#[cfg(feature = "testing")]
pub mod testing;
mod trace;
#[cfg(feature = "sqlite")]
mod transactional;
mod validate;
mod worker;

pub use claim_check::{SweepOptions, SweepReport};
pub use clock::{Clock, ManualClock, SystemClock};
pub use coordination::batch::{
    Batch, BatchProgress, BatchSweepOptions, ChildFailure, ChildResult, OnDeadLetters, sweep_batches,
};
pub use coordination::{CatchUp, Leader, Leadership, Schedule};
pub use error::{Error, ErrorKind};
pub use handler::{Extension, ExtractError, FromJob, Handler, Job, JobService, State, States};
pub use job::JobInfo;
pub use job::outcome::{BoxError, JobError, Outcome, Reason, Verdict};
pub use job::retry::Backoff;
pub use jobqueue_derive::{QueueMessage, Validate};
pub use message::{DecodeError, EncodeError, MessageDefaults, QueueMessage};
pub use name::{BlobName, ContainerName, NameError, QueueName};
pub use queue::{
    Backlog, DeadLetter, DeadLetters, Delivery, PastDeadLetter, PurgeReport, Queue, RedriveOptions,
    RedriveReport, SendOptions, SendUniqueOutcome, Sent, SkippedLetter,
};
pub use settings::metadata::Metadata;
pub use settings::{MessageEncoding, QueueSettings, SettingOverrides, SettingWarning};
pub use standard_sweep::sweep;
pub use storage::Storage;
pub use trace::TraceContext;
pub use validate::{Path, Validate, Violation, Violations};
pub use worker::{
    CircuitBreaker, Context, DeadLettered, Event, Report, Worker, WorkerBuilder, shutdown_signal,
};
