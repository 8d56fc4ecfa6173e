//! Known differences between a storage and the documentation of Azure Storage.

/// A documented difference of a storage. A promise that a deviation affects asserts the difference instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Deviation {
    /// A receipt whose visibility timeout is over is accepted until another worker receives the message,
    /// whatever [`ExpiredReceipt`](jobqueue::storage::ExpiredReceipt) says. Azure Storage itself, and
    /// Azurite.
    ExpiryNotChecked,
    /// All messages of a get share a receipt, which is accepted for each of them. Azurite.
    BatchSharesReceipt,
    /// An update may hide a message beyond its time to live. Azurite.
    VisibilityBeyondExpiryAccepted,
    /// A text within 64 KiB is accepted although it is too large once escaped for XML. Azurite.
    EscapedSizeNotChecked,
    /// Characters that XML 1.0 cannot carry are accepted in texts. Azurite.
    IllegalCharactersAccepted,
    /// The names of a queue's metadata need not be identifiers. Azurite.
    MetadataNamesNotChecked,
    /// The metadata of a queue may exceed 8 KiB. Azurite.
    MetadataSizeNotChecked,
    /// Expired messages are counted until the next operation on the queue. Azurite.
    CountKeepsExpired,
    /// A get does not say when the next message becomes visible.
    NextVisibleUnknown,
    /// Durations with fractions of a second are refused, or rounded up to whole seconds. Azure Storage
    /// itself, and Azurite.
    WholeSeconds,
    /// An expired blob lease is renewed under any id. Azurite.
    RenewWithWrongIdAfterExpiry,
    /// A write under a lease creates the blob if it does not exist. Azurite.
    LeaseOnMissingBlobIgnored,
    /// A lock has the length that its queue sets, whatever the caller asks for. Service Bus.
    LockOfFixedLength,
    /// A renewal keeps the receipt. Service Bus.
    RenewalKeepsReceipt,
    /// The receipt of a put cancels a delayed message until its delay is over, and cancels no other message.
    /// Service Bus.
    PutReceiptCancelsDelayOnly,
    /// A peek also shows leased messages. Service Bus.
    PeekShowsLeased,
    /// Clearing a queue leaves leased messages. Service Bus.
    ClearKeepsLeased,
    /// An expired receipt is refused even if expired receipts are allowed. Service Bus.
    ExpiredNeverAllowed,
    /// The receipt of a released message is refused as if the message were gone, not as expired. Service Bus:
    /// the lock is over, and the service no longer knows its owner.
    ReleaseEndsReceipt,
    /// A get may return fewer messages than are visible, but at least one. Service Bus, from queues that
    /// require sessions: each message of the answer belongs to another session, and the first session does
    /// not wait for the others.
    GetMayBeShort,
    /// A message that is put with a delay gets its position in its group when the delay is over. Service Bus,
    /// in queues that require sessions.
    DelayedJoinsLater,
    /// The storage keeps the order of groups, but not in queues that are created without special options.
    /// Service Bus, whose queues keep the order only if they require sessions.
    UnorderedQueues,
    /// A receipt whose lease has ended is refused as expired, even if another client has received the message
    /// since, or its time to live is over. Service Bus: a lost lock or session does not reveal the state of
    /// its message.
    EndedLeaseIsExpired,
}

impl Deviation {
    /// Returns the promises that a storage with this deviation breaks, each with the beginning of the text of
    /// the failure. The beginning is long enough to match no other failure of the promise, because the suite
    /// then requires exactly this failure: any other failure breaks the promise. Deviations that are not
    /// listed here are asserted inside the promises that they affect.
    pub(super) fn breaks(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::LockOfFixedLength => &[
                ("get::tells_the_time_of_return", "LeasedMessage {"),
                ("update::extends_the_lease", "it became visible all the same"),
                ("update::does_not_prolong_life", EXPIRED),
                // No request can shorten a lock that continues.
                ("announcements::notify_of_a_release_with_a_delay", "no notification came"),
            ],
            Self::RenewalKeepsReceipt => &[
                ("update::gives_a_new_receipt", "the old receipt again"),
                ("update::ends_the_old_receipt", "accepted; expected [PopReceiptMismatch, MessageNotFound]"),
                ("receipt::is_used_up_by_one_of_many_updates", "successes: 10 is not 1"),
            ],
            Self::PutReceiptCancelsDelayOnly => &[
                ("put::receipt_deletes", NOT_FOUND),
                ("put::receipt_updates", NOT_FOUND),
                ("put::receipt_outlives_the_delay", NOT_FOUND),
                ("peek::does_not_touch_receipts", NOT_FOUND),
                ("update::tells_the_time_of_return", NOT_FOUND),
                ("update::does_not_hide_beyond_expiry", "refused with MessageNotFound"),
                ("update::may_hide_until_expiry", NOT_FOUND),
            ],
            Self::PeekShowsLeased => &[
                ("get::hides_the_message", "visible to a peek"),
                ("peek::shows_no_invisible_messages", "an invisible message was shown"),
            ],
            Self::ClearKeepsLeased => &[
                ("clear::removes_all_messages", "messages: 1 is not 0"),
                ("clear::ends_receipts", "accepted; expected [MessageNotFound]"),
            ],
            Self::ExpiredNeverAllowed => &[
                ("receipt::that_expired_deletes_if_unclaimed", EXPIRED),
                ("receipt::that_expired_updates_if_unclaimed", EXPIRED),
            ],
            Self::ReleaseEndsReceipt => &[RELEASE_ENDS_RECEIPT],
            Self::DelayedJoinsLater => &[(
                "groups::wait_for_a_delayed_message",
                "a message overtook one of its group that is delayed",
            )],
            Self::UnorderedQueues => UNORDERED_QUEUES,
            Self::EndedLeaseIsExpired => &[
                // The timeout of the update would end after the message's life, which the adapter refuses
                // before it sends a request.
                ("ttl::ends_receipts", "refused with InvalidInput, expected [MessageNotFound]"),
                ("receipt::of_a_predecessor_does_not_delete", "refused with LeaseExpired"),
                ("receipt::of_a_predecessor_does_not_update", "refused with LeaseExpired"),
                ("receipt::of_a_predecessor_is_refused_if_claimed", "refused with LeaseExpired"),
                ("delete::all_refuses_a_predecessor", "refused with LeaseExpired"),
                ("delete::all_accepts_the_newest_receipt_only", "refused with LeaseExpired"),
            ],
            _ => &[],
        }
    }
}

/// The promises about ordered groups that can be checked without the receipt of a put.
const UNORDERED_QUEUES: &[(&str, &str)] = &[
    ("groups::are_delivered_in_order", UNORDERED),
    ("groups::wait_for_a_message_that_is_given_back", UNORDERED),
    ("groups::wait_for_a_message_whose_lease_has_ended", UNORDERED),
    ("groups::wait_for_a_delayed_message", UNORDERED),
    ("groups::go_on_after_an_expired_message", UNORDERED),
    ("groups::go_on_after_deletions_together", UNORDERED),
    ("groups::notify_of_the_next", UNORDERED),
    ("groups::belong_to_their_queue", UNORDERED),
    ("groups::go_on_while_others_are_put", UNORDERED),
];

/// The failure of a storage with ordered groups whose queue keeps no order.
pub(super) const UNORDERED: &str = "the storage has ordered groups, and keeps no order in this queue";
/// The refusal of a receipt whose lease has ended.
const EXPIRED: &str = "the storage refused: LeaseExpired";
/// The refusal of a receipt that is valid for no message.
const NOT_FOUND: &str = "the storage refused: MessageNotFound";

const RELEASE_ENDS_RECEIPT: (&str, &str) =
    ("receipt::of_a_release_has_expired", "refused with MessageNotFound");
