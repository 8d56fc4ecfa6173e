//! Simulated processes: tasks that a test stops, resumes and kills.
//!
//! A run is repeatable on a current-thread runtime on paused time, with a [`Runtime`](jobqueue::Runtime) that has a
//! [seed](jobqueue::Runtime::with_seed) and a clock that follows tokio's ([`TokioClock`](jobqueue::memory::TokioClock)).

mod process;

pub use process::Process;
