//! Azure Service Bus: queues of a namespace, with the blobs of another storage.
//!
//! Re-exports the crate [`jobqueue_servicebus`], whose page says how the service differs from the port's
//! contract.

#[doc(inline)]
pub use jobqueue_servicebus::Options;
pub use jobqueue_servicebus::azure_core;
#[doc(hidden)]
pub use jobqueue_servicebus::{Answer, Network, Request, Socket};
