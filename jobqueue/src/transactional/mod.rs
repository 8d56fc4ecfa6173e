//! Sends within the caller's own transaction. Besides `connect`, only this module depends on both an adapter and queues.

mod sqlite;
