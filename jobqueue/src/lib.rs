//! placeholder
#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod __private;
mod claim_check;
pub mod codec;
mod connect;
mod envelope;
pub mod golden;
mod handler;
mod lease;
pub mod memory;
mod queue;
pub mod storage;
#[cfg(feature = "testing")]
pub mod testing;
mod vocabulary;
mod worker;

pub use handler::{Extension, ExtractError, FromJob, Handler, Job, State, States};
pub use jobqueue_derive::{QueueMessage, Validate};
pub use queue::{DeadLetter, DeadLetters, Delivery, Queue, RedriveOptions, Redriven, SendOptions, Sent};
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
pub use vocabulary::validate::{Path, Validate, Violation, Violations};
pub use worker::{Context, Event, Report, Worker, WorkerBuilder, shutdown_signal};
