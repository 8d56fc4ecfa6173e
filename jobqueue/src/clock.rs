//! The wall clock, injected so that tests can set it, and the text form of times.

pub(crate) use jobqueue_message::times::{parse_rfc3339, rfc3339, unix_millis};
pub(crate) use jobqueue_storage::clock::WITHOUT_END;
#[doc(inline)]
pub use jobqueue_storage::clock::{Clock, ManualClock, SystemClock, TokioClock};
