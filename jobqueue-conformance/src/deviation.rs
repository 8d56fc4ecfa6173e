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
}
