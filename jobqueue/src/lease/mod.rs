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
//! A [`Lease`] owns the pop receipt of one delivery: every operation on the message goes through it, one after the other, and
//! each works with the receipt that the one before left. The [`LeaseRenewer`] renews all leases of the process from a thread and
//! runtime of its own, so that a handler that blocks its thread cannot lose the message.
//!
//! Knows the queue half of the port and texts; knows nothing of envelopes, queues or workers.

mod deadline_queue;
mod operation;
mod owner;
mod renewer;
mod together;

pub(crate) use operation::LeaseError;
pub(crate) use owner::{Lease, LeaseTerms, Loss};
pub(crate) use renewer::LeaseRenewer;
pub(crate) use together::delete_all;

#[cfg(test)]
mod tests;
