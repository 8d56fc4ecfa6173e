//! Jobs that concern each other: batches, order by key, unique work, schedules and leadership, in one process
//! and among several.

#![allow(clippy::unwrap_used)] // A helper that fails fails its test.

mod batch;
mod batch_faults;
mod batch_membership;
mod batch_options;
mod changed_messages;
mod costs;
mod fail_over;
mod late_records;
mod leader;
mod order;
mod panics;
mod schedule;
mod schedule_blocked;
mod schedule_stop;
mod unique;
mod unique_cancel;
mod unique_holds;
