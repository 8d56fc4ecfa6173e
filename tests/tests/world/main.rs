//! Simulated worlds: several processes on one runtime and one virtual clock, with all randomness from one seed.
//!
//! `JOBQUEUE_WORLDS=100000` runs this many worlds, `JOBQUEUE_SEED=17` one of them, `JOBQUEUE_FEATURES=InOrder,Blobs`
//! only worlds with these features. `JOBQUEUE_CALLS=calls.txt` writes all storage calls of the shortest plan that fails into this file.
//! `JOBQUEUE_SQLITE_WORLDS=500` runs this many worlds on files of SQLite, which are slower.
//! `JOBQUEUE_SERVICEBUS_WORLDS=500` runs this many worlds on Service Bus, on plain queues and on queues that require sessions: the real adapter on
//! the emulator of `tests/support/servicebus`. A seed decides the plan, the faults and the time at which everything arrives; only what the AMQP client
//! draws within itself is not seeded, so that now and then a seed has to be run twice.

#![allow(clippy::unwrap_used)]

mod mix;
mod planted;
