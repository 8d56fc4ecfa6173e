//! The phases by which jobqueue and its peers are measured, written once, so that each does the same work.
//!
//! A system implements [`Subject`]; [`main`] gives it a command line, runs the phases and writes the figures
//! as JSON. The harness knows files, clocks and processes, and no system.

mod child;
mod command;
mod machine;
mod phase;
mod report;
mod seen;
mod subject;
mod trial;

pub use command::{main, main_with};
pub use machine::cpu_time;
pub use phase::{Phase, Setting};
pub use report::{Figure, Figures, Unit, median, progress, write_report};
pub use seen::{Seen, nanos_now};
pub use subject::{
    About, Error, JOB_NAME, JOB_NOTE, JOB_URL, POSTGRES_DURABILITY, Result, Subject, postgres, postgres_url,
};
