//! Each design holds in every state that it can reach, and its broken variants fail.

mod batch_ledger;
mod claim_check;
mod dead_letters;
mod group_record;
