//! Simulated processes: tasks that a test stops, resumes and kills.
//!
//! A run is repeatable on a current-thread runtime on paused time, with a [`Runtime`](crate::Runtime) that has a
//! [seed](crate::Runtime::with_seed) and a clock that follows tokio's ([`TokioClock`](crate::memory::TokioClock)).

mod process;

pub use process::Process;
