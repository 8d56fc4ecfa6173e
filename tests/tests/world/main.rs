//! Simulated worlds: several processes on one runtime and one virtual clock, with all randomness from one
//! seed.
//!
//! `JOBQUEUE_WORLDS=100000` runs this many worlds, `JOBQUEUE_SEED=17` runs the world of this seed, and
//! `JOBQUEUE_FEATURES=InOrder,Blobs` runs only worlds with these features. `JOBQUEUE_CALLS=calls.txt` writes
//! all storage calls of the shortest plan that fails into this file. `JOBQUEUE_SQLITE_WORLDS=500` runs this
//! many worlds on SQLite files, which are slower. `JOBQUEUE_SERVICEBUS_WORLDS=500` runs this many worlds on
//! Service Bus, both on plain queues and on queues that require sessions: the real adapter on the emulator of
//! `tests/support/servicebus`. A seed decides the plan, the faults and the time at which everything arrives.
//! Only the random numbers inside the AMQP client have no seed, so a seed occasionally has to be run twice to
//! repeat a failure.

#![allow(clippy::unwrap_used)]

mod mix;
mod planted;
