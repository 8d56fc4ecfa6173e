//! Leases on messages that renew themselves.
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
//! A transaction of the handler may change the message too. Until the transaction has ended, the lease has two receipts, of which one is good.
//!
//! A [`Lease`] owns the pop receipt of one delivery. Every operation on the message goes through it, one after the
//! other, and uses the receipt that the operation before left. The [`LeaseRenewer`] renews all leases of the process
//! from a thread and a runtime of its own, so that a handler that blocks its thread cannot lose the message.
//!
//! This module knows the queue half of the port and message texts. It knows nothing of envelopes, queues or workers.

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
pub(crate) use together::delete_all;
pub(crate) use transaction::TransactionChange;

#[cfg(test)]
mod tests;
