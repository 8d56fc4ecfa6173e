//! Progress of long work: a bar on a terminal, plain lines otherwise.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// Shows progress on standard error.
#[derive(Debug)]
pub struct Progress {
    what: String,
    total: u64,
    bar: Option<ProgressBar>,
    told: std::sync::atomic::AtomicU64,
}

impl Progress {
    /// Starts at 0 of `total`.
    pub fn new(what: impl Into<String>, total: u64) -> Self {
        let what = what.into();
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{msg} [{bar:40}] {pos}/{len} ({elapsed})");
            let bar = ProgressBar::new(total).with_message(what.clone());
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("#> "))
        });
        Self { what, total, bar, told: 0.into() }
    }

    /// Shows that `done` of the total are done.
    pub fn at(&self, done: u64) {
        let before = self.told.swap(done, std::sync::atomic::Ordering::Relaxed);
        match &self.bar {
            Some(bar) => bar.set_position(done),
            None if done != before => eprintln!("{} {done}/{}", self.what, self.total),
            None => {}
        }
    }

    /// Ends the bar.
    pub fn done(&self) {
        self.at(self.total);
        if let Some(bar) = &self.bar {
            bar.finish();
        }
    }
}
