//! The models of the protocols, one module each.

mod batch;
mod claim_check;
mod dead_letters;
mod order;
