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
    /// The storage can only be polled: it has no notifier.
    PollOnly,
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
    /// The storage goes by a clock that the adapter does not know, so that an expired receipt may be refused as one of a message
    /// that is gone. Service Bus, when a test moves the emulator's clock.
    ExternalClock,
    /// The receipt of a message that was given back is refused as one of a message that is gone, not as expired. Service Bus: the
    /// lock is over, and nothing is known of who had it.
    ReleaseEndsReceipt,
    /// A get may return fewer messages than are visible, though not none. Service Bus, from queues that require sessions: each message
    /// is one of another session, and the first does not wait for the others.
    GetMayBeShort,
    /// A receipt whose lease is over is refused as expired, also when somebody else has got the message since, or its time to live
    /// is over. Service Bus, by the clock of the adapter, and from queues that require sessions: a session that is lost says nothing about its message.
    EndedLeaseIsExpired,
}

impl Deviation {
    /// Returns the names of the promises that a storage with this deviation breaks. The suite then requires that it does break
    /// them. The other deviations are asserted in the promises that they touch.
    pub(super) fn breaks(self) -> &'static [&'static str] {
        match self {
            Self::LockOfFixedLength => &[
                "get::tells_the_time_of_return",
                "update::extends_the_lease",
                "update::does_not_prolong_life",
                // Nothing shortens a lock that goes on.
                "subscriptions::notify_of_a_release_with_a_delay",
            ],
            Self::RenewalKeepsReceipt => &[
                "update::gives_a_new_receipt",
                "update::ends_the_old_receipt",
                "receipt::is_used_up_by_one_of_many_updates",
            ],
            Self::PutReceiptCancelsDelayOnly => &[
                "metadata::counts_no_deleted_messages",
                "put::receipt_deletes",
                "put::receipt_updates",
                "put::receipt_outlives_the_delay",
                "peek::does_not_touch_receipts",
                "update::tells_the_time_of_return",
                "update::does_not_hide_beyond_expiry",
                "update::may_hide_until_expiry",
                "delete::removes_one_message",
                "delete::all_answers_in_order",
                "delete::all_removes_many",
            ],
            Self::PeekShowsLeased => &["get::hides_the_message", "peek::shows_no_invisible_messages"],
            Self::ClearKeepsLeased => &["clear::removes_all_messages", "clear::ends_receipts"],
            Self::ExpiredNeverAllowed => {
                &["receipt::that_expired_deletes_if_unclaimed", "receipt::that_expired_updates_if_unclaimed"]
            }
            Self::ExternalClock => &[
                "ttl::ends_receipts",
                "receipt::that_expired_does_not_delete",
                "receipt::that_expired_does_not_update",
            ],
            Self::ReleaseEndsReceipt => &["receipt::of_a_release_has_expired"],
            Self::EndedLeaseIsExpired => &[
                "ttl::ends_receipts",
                "receipt::of_a_predecessor_does_not_delete",
                "receipt::of_a_predecessor_does_not_update",
                "receipt::of_a_predecessor_is_refused_if_claimed",
            ],
            _ => &[],
        }
    }
}
