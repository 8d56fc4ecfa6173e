//! The life of a job, from `send` to the end of its delivery and beyond: attempts, leases, payloads, limits,
//! dead letters, releases of a program side by side.

#![allow(clippy::unwrap_used)] // A helper that fails fails its test.

mod applications;
mod cancellation;
mod chunks;
mod dead_letters;
mod effects;
mod end_to_end;
mod external_messages;
mod finished;
mod forged_attributes;
mod handler_tests;
mod identity;
mod invariants;
mod kept_records;
mod large_attributes;
mod last_attempts;
mod lease_ends;
mod lease_faults;
mod limited_payloads;
mod limits;
mod panics;
mod payload_outages;
mod payloads;
mod payloads_in_doubt;
mod qualification;
mod receiving;
mod redrive;
mod redrive_outages;
mod redriven_payloads;
mod refused_steps;
mod relay;
mod rolling_deploys;
mod run_time;
mod send_request;
mod shards_that_hang;
mod shared_dead_letters;
mod sweeps;
mod undeleted;
mod verdicts;
