//! Models of the protocols that must lose nothing, checked by [stateright].
//!
//! Each model has a bounded number of processes and faults; the tests visit every state that these can reach. Each also has
//! broken variants, which show that the properties see what they are for: a variant must have a counterexample.
//!
//! - [`batch_ledger`]: batches and their continuation
//! - [`claim_check`]: payloads and checkpoints in blobs
//! - [`dead_letters`]: dead letters, their redrive and purge
//! - [`group_record`]: FIFO groups
//!
//! The models know nothing of the library's code. They say what must hold between two writes; that the code writes in this order is
//! for its own tests and for the seeded world.

pub mod batch_ledger;
pub mod check;
pub mod claim_check;
pub mod dead_letters;
pub mod group_record;
