//! The operations of the port, for errors, traces and planned faults.

use std::fmt;

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)+) => {
        /// An operation of the port. `Display` gives the verb phrase that errors begin with.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Operation {
            $($(#[$doc])* $name,)+
        }

        impl Operation {
            /// A list of all operations.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// Returns the verb phrase, such as `put message`.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

operations! {
    /// [`QueueStore::create_queue`](super::QueueStore::create_queue).
    CreateQueue = "create queue",
    /// [`QueueStore::delete_queue`](super::QueueStore::delete_queue).
    DeleteQueue = "delete queue",
    /// [`QueueStore::list_queues`](super::QueueStore::list_queues).
    ListQueues = "list queues",
    /// [`QueueStore::queue_properties`](super::QueueStore::queue_properties).
    QueueProperties = "read queue properties",
    /// [`MetadataStore::queue_metadata`](super::MetadataStore::queue_metadata).
    QueueMetadata = "read queue metadata",
    /// [`QueueStore::set_queue_metadata`](super::QueueStore::set_queue_metadata), and
    /// [`MetadataStore::replace_queue_metadata`](super::MetadataStore::replace_queue_metadata).
    SetQueueMetadata = "set queue metadata",
    /// [`QueueStore::put`](super::QueueStore::put).
    Put = "put message",
    /// [`Batches::put_all`](super::Batches::put_all).
    PutAll = "put messages",
    /// [`QueueStore::get`](super::QueueStore::get).
    Get = "get messages",
    /// [`QueueStore::peek`](super::QueueStore::peek).
    Peek = "peek messages",
    /// [`QueueStore::update`](super::QueueStore::update).
    Update = "update message",
    /// [`QueueStore::delete`](super::QueueStore::delete).
    Delete = "delete message",
    /// [`Batches::delete_all`](super::Batches::delete_all).
    DeleteAll = "delete messages",
    /// [`NativeDeadLetters::dead_letter`](super::NativeDeadLetters::dead_letter).
    DeadLetter = "dead-letter message",
    /// [`QueueStore::clear`](super::QueueStore::clear).
    Clear = "clear queue",
    /// [`Permissions::check_access`](super::Permissions::check_access) of a queue.
    CheckQueueAccess = "check permissions",
    // Operations of blobs must follow operations of queues: `is_of_blobs` compares the order.
    /// [`BlobStore::create_container`](super::BlobStore::create_container).
    CreateContainer = "create container",
    /// [`BlobStore::delete_container`](super::BlobStore::delete_container).
    DeleteContainer = "delete container",
    /// [`BlobStore::put_blob`](super::BlobStore::put_blob).
    PutBlob = "write blob",
    /// [`BlobStore::get_blob`](super::BlobStore::get_blob).
    GetBlob = "read blob",
    /// [`BlobStore::blob_properties`](super::BlobStore::blob_properties).
    BlobProperties = "read blob properties",
    /// [`BlobStore::delete_blob`](super::BlobStore::delete_blob).
    DeleteBlob = "delete blob",
    /// [`BlobStore::list_blobs`](super::BlobStore::list_blobs).
    ListBlobs = "list blobs",
    /// [`BlobLeases::acquire_lease`](super::BlobLeases::acquire_lease).
    AcquireLease = "acquire lease",
    /// [`BlobLeases::renew_lease`](super::BlobLeases::renew_lease).
    RenewLease = "renew lease",
    /// [`BlobLeases::release_lease`](super::BlobLeases::release_lease).
    ReleaseLease = "release lease",
    /// [`Permissions::check_access`](super::Permissions::check_access) of a container.
    CheckBlobAccess = "check permissions for blobs",
    /// [`JournalStore::append`](super::JournalStore::append).
    AppendJournal = "append to journal",
    /// [`JournalStore::search`](super::JournalStore::search).
    SearchJournal = "search journal",
    /// [`JournalStore::expire`](super::JournalStore::expire).
    ExpireJournal = "remove old entries of journal",
}

impl Operation {
    /// Returns whether this is an operation of blobs, containers or the journal.
    pub const fn is_of_blobs(self) -> bool {
        self as u8 >= Self::CreateContainer as u8
    }

    /// Returns whether callers postpone the operation while the storage is throttled. Renewals and
    /// settlements of leases cannot wait.
    pub(super) const fn can_wait(self) -> bool {
        matches!(self, Self::Put | Self::PutAll | Self::Get | Self::Peek)
    }

    /// Returns whether the operation may change the storage. A get does, since it leases messages.
    pub const fn is_change(self) -> bool {
        !matches!(
            self,
            Self::ListQueues
                | Self::QueueProperties
                | Self::QueueMetadata
                | Self::Peek
                | Self::CheckQueueAccess
                | Self::GetBlob
                | Self::BlobProperties
                | Self::ListBlobs
                | Self::CheckBlobAccess
                | Self::SearchJournal
        )
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
