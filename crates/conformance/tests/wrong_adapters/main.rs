//! Adapters with a planted mistake. For each mistake the suite reports the promise that the mistake breaks.

mod blobs;
mod mistakes;
mod powers;
mod queues;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jobqueue::clock::ManualClock;
use jobqueue::storage::{MessageId, MessageRef, Notifier, QueueStore};
use jobqueue::{QueueName, Runtime, Storage, memory};
use jobqueue_conformance::{Broken, Deviation, Subject, exercise, promises};

use mistakes::{MISTAKES, Mistake};

/// A storage in memory behind an adapter with a mistake.
#[derive(Debug)]
struct Wrong {
    mistake: Mistake,
    below: Storage,
    /// The queue and the newest receipt of each message.
    newest: Mutex<HashMap<MessageId, (QueueName, MessageRef)>>,
    /// The counted dequeues of each message, and whether the next dequeue counts.
    counted: Mutex<HashMap<MessageId, (u32, bool)>>,
    /// The messages that have been received.
    leased: Mutex<HashSet<MessageId>>,
    /// The queue in which each group was first seen.
    groups: Mutex<HashMap<String, QueueName>>,
    arrivals: Notifier,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wrong {
    fn has(&self, mistake: Mistake) -> bool {
        self.mistake == mistake
    }

    fn queues(&self) -> &Arc<dyn QueueStore> {
        self.below.queues().store()
    }

    fn remember(&self, queue: &QueueName, message: &MessageRef) {
        locked(&self.newest).insert(message.id.clone(), (queue.clone(), message.clone()));
    }

    /// Returns the message with its newest receipt, so that the storage ignores the receipt of the caller.
    fn by_id(&self, message: &MessageRef) -> MessageRef {
        locked(&self.newest).get(&message.id).map_or(message, |(_, newest)| newest).clone()
    }

    /// Returns the queue that holds a message, whichever queue the caller names.
    fn any_queue<'q>(&self, queue: &'q QueueName, message: &MessageRef) -> Cow<'q, QueueName> {
        let newest = locked(&self.newest);
        match newest.get(&message.id) {
            Some((own, _)) if self.has(Mistake::TakesAnyQueue) => Cow::Owned(own.clone()),
            _ => Cow::Borrowed(queue),
        }
    }

    fn count(&self, id: &MessageId) -> u32 {
        let mut counted = locked(&self.counted);
        let (count, counts) = counted.entry(id.clone()).or_insert((0, true));
        *count += u32::from(*counts);
        *counts = false;
        *count
    }
}

fn subject(mistake: Mistake) -> Subject {
    let clock = Arc::new(ManualClock::new());
    let below = memory::open_on(Runtime::new().with_clock(clock.clone()));
    let wrong = Arc::new(Wrong {
        mistake,
        below,
        newest: Mutex::default(),
        counted: Mutex::default(),
        leased: Mutex::default(),
        groups: Mutex::default(),
        arrivals: Notifier::new(),
    });
    Subject::virtual_time(Storage::new(wrong.clone(), wrong, "wrong"), clock)
}

async fn run(subject: &Subject, name: &str) -> Result<(), Broken> {
    let promise = promises().iter().find(|promise| promise.name() == name);
    let promise = promise.unwrap_or_else(|| panic!("there is no promise {name}"));
    assert!(promise.concerns(subject), "{name} does not apply");
    promise.run(subject).await
}

#[tokio::test(start_paused = true)]
async fn adapter_without_a_mistake_breaks_no_promise() {
    exercise(&subject(Mistake::None)).await.assert_kept();
}

#[tokio::test(start_paused = true)]
async fn each_mistake_breaks_a_promise_about_it() {
    let mut unnoticed = Vec::new();
    for (mistake, promise) in MISTAKES {
        if run(&subject(*mistake), promise).await.is_ok() {
            unnoticed.push((mistake, promise));
        }
    }
    assert!(unnoticed.is_empty(), "these mistakes break no promise: {unnoticed:?}");
}

/// Promises that no mistake breaks yet, so nothing shows that they can fail. The list may only get shorter.
const UNPROVEN: &[&str] = &[
    "create::makes_a_missing_queue",
    "create::takes_the_longest_name",
    "create::and_deletion_concern_one_queue",
    "missing::queue_refuses_each_of_a_batch",
    "metadata::is_found_in_any_case",
    "metadata::keeps_values",
    "metadata::refuses_names_that_are_not_identifiers",
    "metadata::refuses_more_than_8_kib",
    "metadata::does_not_concern_messages",
    "put::delivers",
    "put::receipt_outlives_the_delay",
    "put::all_of_nothing_does_nothing",
    "text::may_not_outgrow_a_request_when_escaped",
    "delete::all_removes_many",
    "delete::all_of_nothing_does_nothing",
    "clear::keeps_metadata",
    "container::can_be_created_again",
    "blob::is_read_as_written",
    "blob::holds_any_bytes",
    "blob::may_be_empty",
    "blob::may_be_large",
    "blob::is_replaced_by_a_write",
    "blob::loses_metadata_with_a_write",
    "blob::refuses_bad_metadata",
    "blob::tells_when_it_was_written",
    "blob::keeps_its_name",
    "listing::of_an_empty_container_is_empty",
    "listing::tells_properties",
    "acquire::is_not_a_write",
    "hold::is_renewed_by_the_holder",
    "journal::returns_what_was_appended",
    "journal::keeps_a_repeated_entry_once",
    "journal::keeps_entries_of_one_moment_together",
    "journal::pages_neither_repeat_nor_miss_an_entry",
    "journal::selects_by_each_field",
    "journal::ranges_include_their_ends",
    "journal::expires_what_ended_long_ago",
];

#[test]
fn every_other_promise_is_broken_by_a_mistake() {
    let is_proven = |name: &&str| MISTAKES.iter().any(|(_, promise)| promise == name);
    let names = promises().iter().map(|promise| promise.name());
    let unproven: Vec<_> = names.filter(|name| !is_proven(name)).collect();
    assert_eq!(unproven, UNPROVEN);
}

#[tokio::test(start_paused = true)]
async fn deviation_allows_only_its_declared_failures() {
    for (deviation, promise) in [
        (Deviation::RenewalKeepsReceipt, "receipt::is_used_up_by_one_of_many_updates"),
        (Deviation::LockOfFixedLength, "update::does_not_prolong_life"),
        (Deviation::ExpiredNeverAllowed, "receipt::that_expired_updates_if_unclaimed"),
    ] {
        let subject = subject(Mistake::RefusesUpdates).deviating([deviation]);
        let kept = run(&subject, promise).await;
        assert!(kept.is_err(), "{deviation:?} allows that all updates are refused in {promise}");
    }
}
