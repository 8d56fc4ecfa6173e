//! Sessions: how the service keeps the order of a key in a queue that requires them.
//!
//! A session has one receiver at a time, which holds it by a link. Here it has one message out at a time: the next one is asked for when
//! the one before it was completed or dead-lettered, so that a message that is given back is the next one again.
//!
//! ```text
//!             the service gives      a message comes        a get takes it
//!   free ──────────────────────► held ───────────► offered ────────────────► out
//!    ▲                            │ ▲                │                        │
//!    │   no message, or the turn  │ └────────────────│────────────────────────┤ completed, dead-lettered
//!    ├────────────────────────────┘                  │ it is not fetched      │
//!    ├───────────────────────────────────────────────┘                        │
//!    └────────────────────────────────────────────────────────────────────────┘ given back at once, or its delay is over
//! ```
//!
//! **A message that is given back with a delay** keeps its session: the link and its lock are held until the delay is over, and only then
//! the session is released, so that the service delivers the message again, before all that follow. It counts no delivery for that. A scheduled
//! copy, as other queues use it, would lose the message's place. The time and the new text are in a blob beside the queue; so the next owner of
//! the session after a crash holds it for the rest of the delay.
//!
//! **Deliveries are counted here as well.** The service does not count a delivery whose link was closed or lost, as that of a
//! killed process. Each delivery therefore writes its number to that blob before it is handed on: see `deliveries`.

mod acceptor;
mod driver;
mod held;
mod pool;

pub(super) use held::{Session, Unclaimed};
pub(super) use pool::{Claimed, GetResult, Pool};
