//! Azure Storage: queues, blobs and blob leases of a storage account, or of the emulator Azurite.
//!
//! Re-exports the crate [`jobqueue_azure`], whose page lists the limits of the service.

#[doc(inline)]
pub use jobqueue_azure::Options;
pub use jobqueue_azure::azure_core;
