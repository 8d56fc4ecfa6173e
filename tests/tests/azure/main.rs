//! Azure Storage, over Azurite: the adapter, its permissions, lost and wrong answers, programs of others on
//! the same queues, and the framework's main promises in real time.

#![allow(clippy::unwrap_used)] // A helper that fails fails its test.

mod access;
mod end_to_end;
mod harness;
mod interop;
mod interop_worker;
mod lost_answers;
mod permissions;
mod qualification;
mod smoke;
mod start;
mod transactions;
mod worker_faults;
