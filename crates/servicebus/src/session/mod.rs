//! Sessions, by which the service keeps the order of each key in a queue that requires them.
//!
//! A session has one receiver at a time, which holds it by a link. This process takes one message of a
//! session at a time: it requests the next message only after the previous one was completed or
//! dead-lettered, so that a message that is given back is the next one again.
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
//! **A message that is given back with a delay** keeps its session: the link and its lock are held until the
//! delay is over, and only then is the session released. The service then delivers the message again, before
//! all that follow, and counts no delivery for it. A scheduled copy, which other queues use, would lose the
//! message's place. The end of the delay and the new text are in a blob, so after a crash the next owner of
//! the session holds it for the rest of the delay.
//!
//! **Deliveries are also counted by this crate.** The service does not count a delivery whose link was closed
//! or lost, for example the link of a killed process. Each delivery therefore writes its number to that blob
//! before the message is handed out: see `deliveries`.

mod acceptor;
mod driver;
mod held;
mod pool;

pub(super) use held::{Session, SessionReleaseGuard};
pub(super) use pool::{ClaimedMessage, GetResult, Pool};
