//! Simulated worlds: your handlers on several processes that crash, freeze and lose answers, all determined
//! by one seed.
//!
//! A world consists of a storage in memory and several simulated processes on one runtime, under virtual
//! time: workers with your handlers, and other processes that the scenario starts. One `u64` determines
//! everything: latencies, faults, crashes, jitter and ids. A ledger records all sends, runs and settlements,
//! and checks judge it at the end. These are findings:
//!
//! - an acknowledged job that neither ran to its end nor is among the dead letters: it is **lost**;
//! - a job that runs although its send was refused;
//! - an [effect](Effects) or a run that is **doubled without a cause**, that is, without a failed attempt, a
//!   crash, a frozen process, a lost answer or a redrive in between;
//! - a message that waits forever;
//! - more attempts than the queue's settings allow;
//! - a job that is done and is dead-lettered later, or that is done while its dead letter is left;
//! - two handlers of a job at the same time, although the first handler's process has not lost its lease;
//! - a worker that settles a message whose lease it has lost.
//!
//! The ledger records each message that a process puts, receives or deletes, so it also knows the jobs that
//! the library or a handler sends. A cause explains a delivery only of the job that it concerns. It is a
//! failed call for a message of that job, or an incident of the process that had its lease, and lies between
//! the request for the message and its next delivery.
//!
//! ```
//! # use jobqueue::{JobError, JobInfo, QueueMessage, State}; use serde::{Deserialize, Serialize};
//! use jobqueue_testing::world::{Effects, World};
//!
//! #[derive(Serialize, Deserialize, QueueMessage)]
//! #[message(queue = "charges", kind = "charge", lease = "30s")]
//! struct Charge { cents: u64 }
//!
//! async fn charge(charge: Charge, job: JobInfo, State(effects): State<Effects>) -> Result<(), JobError> {
//!     tokio::time::sleep(std::time::Duration::from_millis(300)).await;      // virtual time
//!     effects.happened("charged", &job);
//!     Ok(())
//! }
//!
//! World::builder()
//!     .workers(2, |worker| worker.handle(charge))
//!     .scenario(|world| async move {
//!         let till = world.node("till");
//!         let charges = till.queue::<Charge>().await?;
//!         for cents in 1..=5 {
//!             // The answer is recorded: acknowledged, refused or unknown.
//!             drop(till.send(&charges, &Charge { cents }).await);
//!         }
//!         Ok(())
//!     })
//!     .check(0..20);                                                        // panics with a seed and a trace
//! ```

mod builder;
mod checks;
mod disturbance;
mod effects;
mod host;
mod incident;
mod known_messages;
mod ledger;
mod node;
mod observe;
mod shared;
mod shrink;
mod trace;
mod weather;
mod witness;
mod worker;

pub use builder::{Builder, Finding, Run};
pub use disturbance::Disturbance;
pub use effects::Effects;
pub use host::Host;
pub use incident::Incident;
pub use ledger::{Entry, Fact, RunEnd, Verdict};
pub use node::Node;
pub use shared::World;
pub use shrink::shrink;
pub use weather::Profile;
