//! Names the port's operations, for errors, traces and planned faults.

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

            /// Returns whether it is an operation of blobs and containers.
            pub const fn is_of_blobs(self) -> bool {
                matches!(
                    self,
                    Self::CreateContainer
                        | Self::DeleteContainer
                        | Self::PutBlob
                        | Self::GetBlob
                        | Self::BlobProperties
                        | Self::DeleteBlob
                        | Self::ListBlobs
                        | Self::AcquireLease
                        | Self::RenewLease
                        | Self::ChangeLease
                        | Self::ReleaseLease
                        | Self::BreakLease
                        | Self::CheckBlobAccess
                )
            }

            /// Returns whether callers put the operation off while the storage is throttled. Renewing and settling leases
            /// cannot wait.
            pub(super) const fn can_wait(self) -> bool {
                matches!(self, Self::Put | Self::PutAll | Self::Get | Self::Peek)
            }

            /// Returns whether the operation may change what is stored. A get does: it leases messages.
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
                )
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
    /// [`QueueStore::queue_metadata`](super::QueueStore::queue_metadata).
    QueueMetadata = "read queue metadata",
    /// [`QueueStore::set_queue_metadata`](super::QueueStore::set_queue_metadata).
    SetQueueMetadata = "set queue metadata",
    /// [`QueueStore::put`](super::QueueStore::put).
    Put = "put message",
    /// [`QueueStore::put_all`](super::QueueStore::put_all).
    PutAll = "put messages",
    /// [`QueueStore::get`](super::QueueStore::get).
    Get = "get messages",
    /// [`QueueStore::peek`](super::QueueStore::peek).
    Peek = "peek messages",
    /// [`QueueStore::update`](super::QueueStore::update).
    Update = "update message",
    /// [`QueueStore::delete`](super::QueueStore::delete).
    Delete = "delete message",
    /// [`QueueStore::delete_all`](super::QueueStore::delete_all).
    DeleteAll = "delete messages",
    /// [`QueueStore::dead_letter`](super::QueueStore::dead_letter).
    DeadLetter = "dead-letter message",
    /// [`QueueStore::clear`](super::QueueStore::clear).
    Clear = "clear queue",
    /// [`QueueStore::check_access`](super::QueueStore::check_access).
    CheckQueueAccess = "check permissions",
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
    /// [`BlobStore::acquire_lease`](super::BlobStore::acquire_lease).
    AcquireLease = "acquire lease",
    /// [`BlobStore::renew_lease`](super::BlobStore::renew_lease).
    RenewLease = "renew lease",
    /// [`BlobStore::change_lease`](super::BlobStore::change_lease).
    ChangeLease = "change lease",
    /// [`BlobStore::release_lease`](super::BlobStore::release_lease).
    ReleaseLease = "release lease",
    /// [`BlobStore::break_lease`](super::BlobStore::break_lease).
    BreakLease = "break lease",
    /// [`BlobStore::check_access`](super::BlobStore::check_access).
    CheckBlobAccess = "check permissions for blobs",
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
