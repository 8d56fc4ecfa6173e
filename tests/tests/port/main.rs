//! The port of storages: adapters compared with a model, wrappers, and adapters of others. The promises
//! themselves are in `conformance`.

#![allow(clippy::unwrap_used)] // A helper that fails fails its test.

mod model;
mod sharded;
mod sharded_arrivals;
mod sharded_health;
mod sharded_maps;
mod sharded_processes;
mod third_party_storage;
mod throttling;
