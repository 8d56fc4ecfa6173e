//! Adapters with a planted mistake: for each of them the suite names the promise that it breaks.

mod blobs;
mod queues;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jobqueue::clock::ManualClock;
use jobqueue::storage::{MessageId, MessageRef, Notifier, QueueName, QueueStore};
use jobqueue::{Storage, memory};
use jobqueue_conformance::{Broken, Deviation, Subject, exercise, promises};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Mistake {
    None,
    ForgetsMetadataOfNewQueues,
    TakesOtherMetadata,
    MakesQueuesTwice,
    KeepsDeletedQueues,
    ListsBackwards,
    ListsWithoutPrefix,
    CountsVisibleOnly,
    /// Milliseconds are taken for microseconds.
    TellsTimesOf1970,
    MergesMetadata,
    PutsWithoutDelay,
    PutsForEver,
    PutsTwice,
    CutsDelays,
    TrimsTexts,
    TellsNoExpiry,
    GivesTooMany,
    LeasesForAMoment,
    NeverTellsOfTheNext,
    PeeksAtTooMany,
    PeeksWithoutCount,
    DropsNewTexts,
    ErasesTexts,
    NeverReleases,
    TellsOldReceipt,
    TellsTimesOfPutsOnly,
    HidesLeasedBeyondExpiry,
    RefusesUpdates,
    IgnoresDeletions,
    DeletesWhatIsGone,
    ClearsNothing,
    /// `DELETE … WHERE id = ?`.
    DeletesById,
    /// `DELETE … WHERE id IN (…)`.
    DeletesAllById,
    /// The receipts are compared, but not the times of the leases.
    DeletesAllExpired,
    /// `UPDATE … WHERE id = ?`.
    UpdatesById,
    PutsAllWithoutDelay,
    PutsAllForEver,
    PutsAllWithoutGroups,
    /// Claims to order groups, and does not know them.
    ForgetsGroups,
    CountsDelayedAsWaiting,
    /// Replaces metadata whatever it is.
    ReplacesAnyMetadata,
    /// A dequeue counts when the message is put back, not when its lease runs out.
    CountsReleasesOnly,
    NotifiesOfNoPut,
    NotifiesOfNoBatch,
    NotifiesOfNoDelayedPut,
    NotifiesOfNoRelease,
    NotifiesOfNoShorterLease,
    ShowsFirstPageOnly,
    ShowsWaitingForAll,
    MakesAllVisible,
    TakesWrongPages,
    /// A caller would ask again for ever.
    FailsAtWrongPages,
    DetachesOtherBlobs,
    ListsOnePage,
    ListsBlobsBackwards,
    ListsBlobsWithoutPrefix,
    /// Content first, metadata afterwards.
    WritesInTwoSteps,
    WritesWithoutCondition,
    WritesWithoutMetadata,
    NeverChangesTheTag,
    ReadsBeyondTheLimit,
    DeletesMissingBlobs,
    DeletesMissingContainers,
    KeepsDeletedContainers,
    ShowsNoLease,
    LeasesToAll,
    LeasesForAnyTime,
    LeasesForAMinute,
    RenewsForAll,
    RenewsNothing,
    ReleasesNothing,
    SubtractsExpiredTwice,
    PutsListsOneByOne,
    /// The metadata is compared, and written later.
    ReplacesInTwoSteps,
    HidesWhatIsDeletedTogether,
    NotifiesOfNoDeletion,
    /// `WHERE group_name = ?`, without the queue.
    MixesGroupsOfQueues,
}

/// A storage in memory behind an adapter with a mistake.
#[derive(Debug)]
struct Wrong {
    mistake: Mistake,
    below: Storage,
    /// The newest receipt of each message, by its id.
    newest: Mutex<HashMap<MessageId, MessageRef>>,
    /// The counted dequeues of each message, and whether the next one counts.
    counted: Mutex<HashMap<MessageId, (u32, bool)>>,
    /// The messages that were received.
    leased: Mutex<HashSet<MessageId>>,
    /// The queue in which a group was seen first.
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

    fn note(&self, message: &MessageRef) {
        locked(&self.newest).insert(message.id.clone(), message.clone());
    }

    /// Returns the message with the receipt that makes the storage below ignore the caller's.
    fn by_id(&self, message: &MessageRef) -> MessageRef {
        locked(&self.newest).get(&message.id).unwrap_or(message).clone()
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
    let below = memory::open_with_clock(clock.clone());
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
    assert!(promise.concerns(subject), "{name} is not tried");
    promise.run(subject).await
}

#[tokio::test(start_paused = true)]
async fn adapter_without_a_mistake_breaks_no_promise() {
    exercise(&subject(Mistake::None)).await.assert_kept();
}

#[tokio::test(start_paused = true)]
async fn each_mistake_breaks_a_promise_about_it() {
    let mut blind = Vec::new();
    for (mistake, promise) in MISTAKES {
        if run(&subject(*mistake), promise).await.is_ok() {
            blind.push((mistake, promise));
        }
    }
    assert!(blind.is_empty(), "these mistakes break no promise: {blind:?}");
}

// audit 4, E2
#[tokio::test(start_paused = true)]
async fn deviation_excuses_nothing_but_what_it_says() {
    for (deviation, promise) in [
        (Deviation::RenewalKeepsReceipt, "receipt::is_used_up_by_one_of_many_updates"),
        (Deviation::LockOfFixedLength, "update::does_not_prolong_life"),
        (Deviation::ExpiredNeverAllowed, "receipt::that_expired_updates_if_unclaimed"),
    ] {
        let subject = subject(Mistake::RefusesUpdates).deviating([deviation]);
        let kept = run(&subject, promise).await;
        assert!(kept.is_err(), "{deviation:?} excuses that all updates are refused in {promise}");
    }
}

const MISTAKES: &[(Mistake, &str)] = &[
    (Mistake::ForgetsMetadataOfNewQueues, "metadata::of_creation_is_read_back"),
    (Mistake::TakesOtherMetadata, "create::refuses_other_metadata"),
    (Mistake::MakesQueuesTwice, "create::is_repeatable_with_the_same_metadata"),
    (Mistake::MakesQueuesTwice, "create::by_many_at_once_succeeds"),
    (Mistake::KeepsDeletedQueues, "create::after_a_deletion_is_empty"),
    (Mistake::KeepsDeletedQueues, "list::forgets_deleted_queues"),
    (Mistake::KeepsDeletedQueues, "missing::queue_is_what_a_deleted_one_becomes"),
    (Mistake::ListsBackwards, "list::has_every_queue_in_order"),
    (Mistake::ListsWithoutPrefix, "list::has_only_queues_with_the_prefix"),
    (Mistake::CountsVisibleOnly, "metadata::counts_invisible_messages_too"),
    (Mistake::TellsTimesOf1970, "put::is_stamped_by_the_clock_of_the_properties"),
    (Mistake::TellsTimesOf1970, "listing::is_stamped_by_the_clock_of_modifications"),
    (Mistake::MergesMetadata, "metadata::is_replaced_as_a_whole"),
    (Mistake::PutsWithoutDelay, "put::with_a_delay_hides_the_message"),
    (Mistake::PutsWithoutDelay, "peek::shows_no_invisible_messages"),
    (Mistake::PutsForEver, "ttl::ends_a_waiting_message"),
    (Mistake::PutsForEver, "ttl::ends_a_leased_message"),
    (Mistake::PutsForEver, "metadata::counts_no_expired_messages"),
    (Mistake::PutsTwice, "put::by_many_at_once_stores_each"),
    (Mistake::PutsTwice, "put::receipt_deletes"),
    (Mistake::CutsDelays, "put::never_cuts_a_delay"),
    (Mistake::TrimsTexts, "text::survives_with_white_space"),
    (Mistake::TellsNoExpiry, "put::tells_the_times"),
    (Mistake::TellsNoExpiry, "ttl::is_told_by_get_and_peek"),
    (Mistake::GivesTooMany, "get::returns_no_more_than_asked_for"),
    (Mistake::GivesTooMany, "get::takes_counts_from_1_to_32"),
    (Mistake::LeasesForAMoment, "get::tells_the_time_of_return"),
    (Mistake::NeverTellsOfTheNext, "get::tells_when_the_next_becomes_visible"),
    (Mistake::NeverTellsOfTheNext, "get::tells_when_a_leased_message_becomes_visible"),
    (Mistake::PeeksAtTooMany, "peek::shows_no_more_than_asked_for"),
    (Mistake::PeeksAtTooMany, "peek::takes_counts_from_1_to_32"),
    (Mistake::PeeksWithoutCount, "peek::does_not_count"),
    (Mistake::DropsNewTexts, "update::replaces_the_text"),
    (Mistake::ErasesTexts, "update::keeps_the_text"),
    (Mistake::NeverReleases, "update::to_zero_releases_at_once"),
    (Mistake::NeverReleases, "update::shortens_the_lease"),
    (Mistake::TellsOldReceipt, "update::gives_a_new_receipt"),
    (Mistake::TellsOldReceipt, "update::can_be_repeated"),
    (Mistake::TellsTimesOfPutsOnly, "update::tells_the_time_of_return"),
    (Mistake::HidesLeasedBeyondExpiry, "update::does_not_hide_beyond_expiry"),
    (Mistake::RefusesUpdates, "receipt::is_used_up_by_one_of_many_updates"),
    (Mistake::IgnoresDeletions, "delete::removes_the_message"),
    (Mistake::DeletesWhatIsGone, "delete::twice_finds_nothing"),
    (Mistake::DeletesWhatIsGone, "delete::by_many_at_once_succeeds_once"),
    (Mistake::DeletesWhatIsGone, "ttl::ends_receipts"),
    (Mistake::ClearsNothing, "clear::removes_all_messages"),
    (Mistake::ClearsNothing, "clear::ends_receipts"),
    (Mistake::DeletesById, "receipt::of_a_predecessor_does_not_delete"),
    (Mistake::DeletesById, "receipt::that_was_made_up_is_refused"),
    (Mistake::DeletesAllById, "delete::all_refuses_a_predecessor"),
    (Mistake::DeletesAllExpired, "delete::all_refuses_an_expired_one"),
    (Mistake::UpdatesById, "receipt::of_a_predecessor_does_not_update"),
    (Mistake::UpdatesById, "update::ends_the_old_receipt"),
    (Mistake::PutsAllWithoutDelay, "put::all_keeps_delays_and_lives"),
    (Mistake::PutsAllForEver, "put::all_keeps_delays_and_lives"),
    (Mistake::PutsAllWithoutGroups, "groups::are_delivered_in_order"),
    (Mistake::ForgetsGroups, "groups::are_delivered_in_order"),
    (Mistake::ForgetsGroups, "groups::wait_for_a_message_that_is_given_back"),
    (Mistake::ForgetsGroups, "groups::wait_for_a_message_whose_lease_has_ended"),
    (Mistake::ForgetsGroups, "groups::wait_for_a_delayed_message"),
    (Mistake::CountsDelayedAsWaiting, "counts::are_those_of_each_state"),
    (Mistake::ReplacesAnyMetadata, "metadata::is_replaced_on_condition"),
    (Mistake::CountsReleasesOnly, "get::counts_after_a_timeout"),
    (Mistake::NotifiesOfNoPut, "subscriptions::notify_of_a_put"),
    (Mistake::NotifiesOfNoPut, "subscriptions::are_remembered"),
    (Mistake::NotifiesOfNoPut, "subscriptions::notify_every_subscriber"),
    (Mistake::NotifiesOfNoPut, "subscriptions::notify_in_a_queue_made_later"),
    (Mistake::NotifiesOfNoPut, "subscriptions::survive_a_wait_given_up"),
    (Mistake::NotifiesOfNoBatch, "subscriptions::notify_of_a_batch"),
    (Mistake::NotifiesOfNoDelayedPut, "subscriptions::notify_of_a_delayed_put"),
    (Mistake::NotifiesOfNoRelease, "subscriptions::notify_of_a_release"),
    (Mistake::NotifiesOfNoShorterLease, "subscriptions::notify_of_a_release_with_a_delay"),
    (Mistake::ShowsFirstPageOnly, "index::shows_all_page_by_page"),
    (Mistake::ShowsWaitingForAll, "index::shows_each_message_once"),
    (Mistake::MakesAllVisible, "index::makes_hidden_messages_visible"),
    (Mistake::TakesWrongPages, "index::refuses_wrong_pages"),
    (Mistake::FailsAtWrongPages, "index::refuses_wrong_pages"),
    (Mistake::DetachesOtherBlobs, "blob::is_the_same_through_a_detached_handle"),
    (Mistake::ListsOnePage, "listing::goes_on_behind_a_marker"),
    (Mistake::ListsBlobsBackwards, "listing::has_every_blob_in_order"),
    (Mistake::ListsBlobsWithoutPrefix, "listing::has_only_blobs_with_the_prefix"),
    (Mistake::WritesInTwoSteps, "blob::is_written_in_one_step"),
    (Mistake::WritesInTwoSteps, "blob::is_whole_after_a_dropped_write"),
    (Mistake::WritesWithoutCondition, "condition::if_absent_never_overwrites"),
    (Mistake::WritesWithoutCondition, "condition::if_absent_has_one_winner"),
    (Mistake::WritesWithoutCondition, "condition::if_match_refuses_a_former_tag"),
    (Mistake::WritesWithoutCondition, "condition::if_match_has_one_winner"),
    (Mistake::WritesWithoutMetadata, "blob::keeps_metadata"),
    (Mistake::NeverChangesTheTag, "condition::tag_changes_with_every_write"),
    (Mistake::NeverChangesTheTag, "condition::tag_is_never_used_again"),
    (Mistake::ReadsBeyondTheLimit, "blob::is_not_read_beyond_the_limit"),
    (Mistake::DeletesMissingBlobs, "blob::is_gone_when_deleted"),
    (Mistake::DeletesMissingContainers, "container::that_is_missing_cannot_be_deleted"),
    (Mistake::KeepsDeletedContainers, "container::can_be_deleted_with_leased_blobs"),
    (Mistake::ShowsNoLease, "acquire::takes_an_available_lease"),
    (Mistake::LeasesToAll, "acquire::is_refused_while_another_holds"),
    (Mistake::LeasesToAll, "acquire::has_one_winner"),
    (Mistake::LeasesForAnyTime, "acquire::takes_15_to_60_seconds"),
    (Mistake::LeasesForAMinute, "expiry::comes_in_time"),
    (Mistake::LeasesForAMinute, "expiry::lets_another_acquire"),
    (Mistake::RenewsForAll, "hold::is_for_the_holder_only"),
    (Mistake::RenewsForAll, "expiry::lets_nobody_else_renew"),
    (Mistake::RenewsNothing, "expiry::is_put_off_by_renewal"),
    (Mistake::ReleasesNothing, "hold::ends_with_a_release"),
    (Mistake::SubtractsExpiredTwice, "metadata::counts_a_message_among_expired_ones"),
    (Mistake::PutsListsOneByOne, "put::all_is_whole_after_a_dropped_future"),
    (Mistake::ReplacesInTwoSteps, "metadata::is_replaced_by_one_of_many"),
    (Mistake::HidesWhatIsDeletedTogether, "groups::go_on_after_deletions_together"),
    (Mistake::NotifiesOfNoDeletion, "groups::notify_of_the_next"),
    (Mistake::MixesGroupsOfQueues, "groups::belong_to_their_queue"),
    (Mistake::IgnoresDeletions, "groups::lose_a_waiting_message_that_its_sender_deletes"),
    (Mistake::ForgetsGroups, "groups::go_on_while_others_are_put"),
];
