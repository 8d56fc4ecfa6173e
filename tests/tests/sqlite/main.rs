//! SQLite files: crashes, faults, locks, processes and transactions. Power cuts are in `sqlite_power`.

#![allow(clippy::unwrap_used)] // A helper that fails fails its test.

mod backups;
mod completions;
mod crashes;
mod damage;
mod faults;
mod locks;
mod own_tables;
mod processes;
mod refusals;
mod transactions;
