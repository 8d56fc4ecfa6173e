//! Figures, and the JSON file that holds them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::machine::Machine;
use crate::subject::{About, Result};

/// The unit of a figure.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// More is better.
    JobsPerSecond,
    /// Less is better.
    Milliseconds,
    /// Of processor time; less is better.
    Microseconds,
    /// Percent of one core; less is better.
    PercentOfCore,
    /// Less is better.
    Mebibytes,
    /// A number by itself.
    Count,
}

/// One measured number.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Figure {
    /// The number.
    pub value: f64,
    /// Its unit.
    pub unit: Unit,
}

/// Figures by name.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(transparent)]
pub struct Figures(BTreeMap<String, Figure>);

impl Figures {
    /// Adds a figure, and shows it.
    pub fn put(&mut self, name: &str, value: f64, unit: Unit) {
        progress(&format!("  {name}: {value:.3} {unit:?}"));
        self.0.insert(name.to_owned(), Figure { value, unit });
    }

    /// Adds all of `other`.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Adds the rate of `jobs` in `time`, in jobs per second.
    pub fn rate(&mut self, name: &str, jobs: u64, time: Duration) {
        self.put(name, jobs as f64 / time.as_secs_f64(), Unit::JobsPerSecond);
    }

    /// Adds the median and the 99th percentile of sorted delays.
    pub fn delays(&mut self, name: &str, sorted: &[Duration]) {
        for (percent, suffix) in [(50, "p50"), (99, "p99")] {
            let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
            if let Some(delay) = sorted.get(at) {
                self.put(&format!("{name}_{suffix}"), delay.as_secs_f64() * 1e3, Unit::Milliseconds);
            }
        }
    }
}

/// The content of the file.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    #[serde(flatten)]
    pub(crate) about: About,
    pub(crate) machine: Machine,
    pub(crate) quick: bool,
    pub(crate) results: Figures,
}

impl Report {
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let mut json = serde_json::to_vec_pretty(self)?;
        json.push(b'\n');
        Ok(std::fs::write(path, json)?)
    }
}

/// Writes figures that no [`Subject`](crate::Subject) made, together with those of the machine with the disk
/// of `directory`.
///
/// # Errors
/// The file cannot be written.
pub fn write_report(
    about: About,
    quick: bool,
    directory: &Path,
    results: Figures,
    path: &Path,
) -> Result<()> {
    Report { about, machine: Machine::look(directory)?, quick, results }.write(path)
}

/// Prints the progress.
pub fn progress(text: &str) {
    eprintln!("{text}");
}

/// Returns the median of figures, the upper one of an even number.
///
/// # Panics
/// There are no figures.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
