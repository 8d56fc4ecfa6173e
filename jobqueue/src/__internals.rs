//! The internals of this crate that other crates, models and benchmarks of this repository use. They have the
//! version of this crate: `jobqueue-admin` reads and changes the records of workers and senders,
//! `jobqueue-opentelemetry` reads queues, `jobqueue-testing` checks runs, and benchmarks measure parts. No
//! other crate may rely on these items: they change with any release.

use crate::error::Error;
use crate::message::QueueMessage;
use crate::queue::{Queue, SendOptions};
use crate::send::{Purpose, prepare};

pub use crate::connect::connect_existing;
pub use crate::coordination::batch::claimed::{
    ClaimedChild, ClaimedContinuation, batch_secret, batch_source,
};
pub use crate::coordination::batch::membership::{remove_own, remove_tokens};
pub use crate::coordination::batch::overview::{
    BatchChildren, BatchRecord, batches, children as batch_children,
};
pub use crate::coordination::leader::blob::{
    CONTAINER as LEADERS, HOLDER as LEADER_HOLDER, TERM as LEADER_TERM,
};
#[cfg(feature = "schedule")]
pub use crate::coordination::schedule::operate::{
    ScheduleRecord, ScheduleRequest, request_change, schedules,
};
pub use crate::dead_letters::duplicates::SeenLetters;
pub use crate::dead_letters::held::PassAction;
pub use crate::dead_letters::pass_state::PassListeners;
pub use crate::dead_letters::revive::redriven_at;
pub use crate::dead_letters::untyped::{DeadLetterQueue, LOG_SEARCH_TIME};
pub use crate::delivery::{UNREADABLE_SOURCE, discard_forged_history, past_dead_letters, unwrap_unreadable};
pub use crate::envelope::is_own_header;
pub use crate::group_log::{
    EntryRecord, GroupRecord, group_of, groups, is_in_order, names_in_order, position_names,
};
pub use crate::handler::erased::{is_outage, is_snooze};
pub use crate::history::open as open_journal;
pub use crate::job::outcome::kept_text;
pub use crate::presence::{
    Answer, CONTAINER as WORKERS, CancelRequest, Counters, FoundWorker, HISTOGRAM_BOUNDS, JobProgress,
    KindLimits, ListeningQueue, Records, Requests, RunningJob, StoredRequest, WorkerRecord, is_of_this_life,
    storage_time,
};
pub use crate::queue_reading::QueueReading;
pub use crate::untyped_queue::{UntypedQueue, check_blob, load_blob, time_of};
pub use crate::worker::shutdown_signal_then;
pub use jobqueue_storage::text::{is_hidden, visible};
pub use jobqueue_storage::{debug_fields, setters};

/// Returns the text that [`Queue::send`] would store: the validated and encoded message in an event with a
/// new id.
///
/// # Errors
/// The errors of [`Queue::send`], except for errors of the storage.
pub fn text_of<M: QueueMessage>(queue: &Queue<M>, message: &M) -> Result<String, Error> {
    Ok(prepare(queue.core(), message, SendOptions::new(), Purpose::Check)?.put.text)
}

/// Decodes and validates the message in a text of the queue. Reads the storage only if the payload is in a
/// blob.
///
/// # Errors
/// The error of the text or the payload.
pub async fn read_text<M: QueueMessage>(queue: &Queue<M>, text: &str) -> Result<M, Error> {
    crate::receive::read_text(queue.core(), text).await
}

/// Returns whether a text of a queue is an event of a kind that `M` does not have.
pub fn is_of_another_kind<M: QueueMessage>(text: &str) -> bool {
    crate::receive::is_of_another_kind::<M>(text)
}
