//! The known differences between a storage and Azure's documentation.

/// A documented difference of a storage. A promise that it touches asserts the difference instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Deviation {
    /// A receipt whose visibility timeout is over is accepted until another worker gets the message, whatever
    /// [`ExpiredReceipt`](jobqueue::storage::ExpiredReceipt) says. Azure itself does so, and so does Azurite.
    ExpiryNotChecked,
    /// All messages of one get have the same receipt, and each accepts those of the others. Azurite.
    BatchSharesReceipt,
    /// An update may hide a message until after its time to live. Azurite.
    VisibilityBeyondExpiryAccepted,
    /// A text that is within 64 KiB but too large once escaped for XML is accepted. Azurite.
    EscapedSizeNotChecked,
    /// Characters that XML 1.0 cannot carry are accepted in texts. Azurite.
    IllegalCharactersAccepted,
    /// A queue's metadata names need not be identifiers. Azurite.
    MetadataNamesNotChecked,
    /// A queue's metadata may have more than 8 KiB. Azurite.
    MetadataSizeNotChecked,
    /// Expired messages are counted until the next operation on the queue. Azurite.
    CountKeepsExpired,
    /// A get does not tell when the next message becomes visible.
    NextVisibleUnknown,
    /// Durations are refused or rounded up to whole seconds. Azure itself, and Azurite.
    WholeSeconds,
    /// An expired blob lease is renewed under any id. Azurite.
    RenewWithWrongIdAfterExpiry,
    /// A write that names a lease creates the blob if there is none. Azurite.
    LeaseOnMissingBlobIgnored,
    /// A lock has the length of its queue, whatever the caller asks for. Service Bus.
    LockOfFixedLength,
    /// A renewal keeps the receipt. Service Bus.
    RenewalKeepsReceipt,
    /// The receipt of a put cancels a delayed message until its delay is over, and no other message. Service Bus.
    PutReceiptCancelsDelayOnly,
    /// A peek shows leased messages as well. Service Bus.
    PeekShowsLeased,
    /// Clearing a queue leaves leased messages. Service Bus.
    ClearKeepsLeased,
    /// An expired receipt is refused even if expired receipts are allowed. Service Bus.
    ExpiredNeverAllowed,
    /// The receipt of a message that was given back is refused as one of a message that is gone, not as expired. Service Bus: the
    /// lock is over, and its former owner is unknown.
    ReleaseEndsReceipt,
    /// A get may return fewer messages than are visible, though not none. Service Bus, from queues that require sessions: each message
    /// is one of another session, and the first does not wait for the others.
    GetMayBeShort,
    /// A message that is put with a delay gets its position in its group when the delay is over. Service Bus, in queues that require sessions.
    DelayedJoinsLater,
    /// The storage keeps the order of groups, and not in a queue that is created like any other. Service Bus, whose queues keep it only if they
    /// require sessions.
    UnorderedQueues,
    /// A receipt whose lease has ended is refused as expired, even if another client has received the message since, or
    /// its time to live has passed. Service Bus: a lost lock or session does not reveal the state of its message.
    EndedLeaseIsExpired,
}

impl Deviation {
    /// Returns the promises that a storage with this deviation breaks, each with the beginning of the text of the expectation that fails, so long that no other failure has it. The suite then
    /// requires that it fails there: any other failure breaks the promise. The other deviations are asserted in the promises that
    /// they touch.
    pub(super) fn breaks(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::LockOfFixedLength => &[
                ("get::tells_the_time_of_return", "LeasedMessage {"),
                ("update::extends_the_lease", "it became visible all the same"),
                ("update::does_not_prolong_life", EXPIRED),
                // Nothing shortens a lock that goes on.
                ("subscriptions::notify_of_a_release_with_a_delay", "no notification came"),
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
                // The timeout of the update ends after the message's life; the adapter refuses that before it asks.
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

/// The promises of ordered groups that are tried without the receipt of a put.
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

/// The failure of a queue without order, of a storage with ordered groups.
pub(super) const UNORDERED: &str = "the storage has ordered groups, and keeps no order in this queue";
/// The refusal of a receipt whose lease is over.
const EXPIRED: &str = "the storage refused: LeaseExpired";
/// The refusal of a receipt that is good for no message.
const NOT_FOUND: &str = "the storage refused: MessageNotFound";

const RELEASE_ENDS_RECEIPT: (&str, &str) =
    ("receipt::of_a_release_has_expired", "refused with MessageNotFound");
