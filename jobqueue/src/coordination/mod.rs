//! Work that several jobs or processes do together.
//!
//! Knows queues, blobs and what a worker tells its hooks; knows nothing of adapters.

pub(crate) mod batch;
