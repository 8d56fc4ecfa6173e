//! Models of the protocols that must lose no job, checked by [stateright].
//!
//! A model runs the library itself. Its processes are programs over the public interface: a send, a worker
//! with one message, a redrive. Its storage is a value, [`Store`](store::Store), which only the requests of
//! the processes change. A step of the model answers one request of one process. The checker visits every
//! order of steps, with a bounded number of faults: processes that die, answers that are lost, requests that
//! are refused or arrive late, and leases that end.
//!
//! A future cannot be copied, so a process is represented by the list of its answers. A step runs the program
//! again from its beginning, gives it these answers, and takes the request that it makes next. Programs are
//! deterministic, because clock and random numbers come from the model. [`process`] caches the requests, so
//! that each is computed once.
//!
//! - [`batch`]: batches, their restarts, and their continuations
//! - [`dead_letters`]: dead letters and their redrive
//! - [`claim_check`]: payloads and checkpoints in blobs
//! - [`order`]: messages in order
//!
//! A model whose storage breaks a rule, [`Broken`](store::Broken), or whose program has a mistake shows that
//! each property finds the defect it is for. Mutants show that the library itself is checked:
//! `tests/mutants/tests.toml` undoes fixes in the library and names the tests of this crate that fail then.

pub mod batch;
pub mod check;
pub mod claim_check;
pub mod dead_letters;
pub mod model;
pub mod order;
pub mod process;
pub mod store;
