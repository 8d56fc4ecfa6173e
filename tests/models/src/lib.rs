//! Models of the protocols that must lose no job, checked by [stateright].
//!
//! Each model has a bounded number of processes and faults; the tests visit every reachable state. Each model also
//! has broken variants, which show that the properties find what they look for: a variant must have a counterexample.
//!
//! - [`batch_ledger`]: batches and their continuation
//! - [`claim_check`]: payloads and checkpoints in blobs
//! - [`dead_letters`]: dead letters, their redrive and purge
//! - [`group_record`]: FIFO groups
//!
//! The models do not use the library's code. They say what must hold between two writes. The library's own tests and
//! the seeded world check that the code writes in this order.

pub mod batch_ledger;
pub mod check;
pub mod claim_check;
pub mod dead_letters;
pub mod group_record;
