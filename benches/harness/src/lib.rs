//! The phases that jobqueue and its peers are measured by, written once, so that all are asked for the same.
//!
//! A system implements [`Subject`]; [`main`] gives it a command line, runs the phases and writes the figures as JSON.
//! Knows files, clocks and processes; knows nothing of any system.

mod child;
mod command;
mod machine;
mod phase;
mod report;
mod seen;
mod subject;

pub use command::{main, main_with};
pub use machine::cpu_time;
pub use phase::{Phase, Setting};
pub use report::{Figure, Figures, Unit, progress, write_report};
pub use seen::{Seen, nanos_now};
pub use subject::{About, Error, JOB_NAME, JOB_NOTE, JOB_URL, Result, Subject};
