//! The promises of the core, each under the faults that could break it. The numbers above a test refer to
//! tests/README.md.

mod attempts;
mod bounds;
mod dead_letters;
mod deletions;
mod delivery;
mod durable;
mod identity;
mod order;
mod ownership;
mod payloads;
mod receipts;
mod refusals;
mod renewer;
mod rubbish;
mod shutdown;
mod stopped;
mod sweep;
mod sweep_model;
mod together;
mod versions;
mod watching;
