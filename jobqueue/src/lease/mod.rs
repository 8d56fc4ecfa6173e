//! Leases on messages, which renew themselves.
//!
//! ```text
//!            renewed                    answer lost, then "not found"
//!          ┌────────┐                 ┌───────────────────────────────► Uncertain ─┐
//!          ▼        │                 │                                            │ deadline
//!  get ──► Held ────┴─────────────────┤                                            ▼
//!                                     ├── taken by another, or deadline ─────────► Lost
//!                                     └── delete, release ───────────────────────► Closed
//! ```
//!
//! A transaction of the handler may change the message, too. Until the transaction has ended, the lease has
//! two receipts, of which only one is valid.
//!
//! A [`Lease`] owns the pop receipt of one delivery. All operations on the message go through it, one after
//! the other, and each uses the receipt that the previous operation left. The [`LeaseRenewer`] renews all
//! leases of the process on its own thread and runtime, so that a handler that blocks its thread cannot lose
//! the message.
//!
//! This module knows the queue half of the port and message texts. It knows nothing of envelopes, queues or
//! workers.

mod deadline_queue;
mod operation;
mod owner;
mod removal;
mod renewer_thread;
mod schedule;
mod terms;
mod together;
mod transaction;

pub(crate) use operation::LeaseError;
pub(crate) use owner::{Lease, Loss};
pub(crate) use renewer_thread::LeaseRenewer;
pub(crate) use terms::{LeaseTerms, LeasedQueue};
pub(crate) use together::{BatchDeletion, delete_all};
pub(crate) use transaction::TransactionChange;

#[cfg(test)]
mod tests;
