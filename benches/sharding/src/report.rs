//! The tables.

use std::fmt::Write as _;
use std::path::Path;

use crate::simulation::{Outcome, Setting};

const BEGIN: &str = "<!-- simulated: begin -->";
const END: &str = "<!-- simulated: end -->";

/// A number of shards and accounts at its best load.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    /// The simulated setting.
    pub setting: Setting,
    /// The outcome of the simulation.
    pub outcome: Outcome,
}

/// The outcome with all shards healthy, and with one throttled.
#[derive(Debug, Clone)]
pub(crate) struct Throttled {
    /// All shards healthy.
    pub well: Outcome,
    /// The first shard serves a twentieth.
    pub slow: Outcome,
}

/// Returns the tables in Markdown.
pub(crate) fn text(seed: &str, seconds: u64, cells: &[Cell], throttled: &Throttled) -> String {
    let mut text = format!("Seed {seed}, {seconds} virtual seconds a run.\n\n");
    text += "| shards | accounts | jobs/s | limits allow | part of it | requests a job | refused | load |\n";
    text += "|--:|--:|--:|--:|--:|--:|--:|--:|\n";
    for Cell { setting, outcome } in cells {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "| {} | {} | **{}** | {} | {:.0} % | {:.2} | {:.1} % | {:.0} % |",
            setting.shards,
            setting.accounts,
            thousands(outcome.throughput),
            thousands(setting.ideal()),
            100.0 * outcome.throughput / setting.ideal(),
            outcome.requests,
            outcome.refused,
            100.0 * setting.load,
        );
    }
    text += "\nOne of 8 shards served at 100 messages a second instead of 2,000, the load the same:\n\n";
    text += "| shard | jobs/s, all well | jobs/s, one throttled |\n|---|--:|--:|\n";
    for (queue, well) in &throttled.well.by_queue {
        let slow = throttled.slow.by_queue.get(queue).copied().unwrap_or_default();
        let _ = writeln!(text, "| `{queue}` | {} | {} |", thousands(*well), thousands(slow));
    }
    let (well, slow) = (throttled.well.throughput, throttled.slow.throughput);
    let _ = writeln!(text, "| together | {} | {} |", thousands(well), thousands(slow));
    text
}

/// Puts the tables between the markers of `sharding.md`.
pub(crate) fn write(docs: &Path, text: &str) -> std::io::Result<()> {
    let page = docs.join("sharding.md");
    let old = std::fs::read_to_string(&page)?;
    let damaged = || std::io::Error::other(format!("{} has lost its markers", page.display()));
    let (before, rest) = old.split_once(BEGIN).ok_or_else(damaged)?;
    let (_, after) = rest.split_once(END).ok_or_else(damaged)?;
    std::fs::write(&page, format!("{before}{BEGIN}\n{text}{END}{after}"))
}

/// Whole, with commas.
pub(crate) fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.max(0.0));
    let place = |(at, digit): (usize, char)| {
        let comma = at > 0 && (digits.len() - at).is_multiple_of(3);
        comma.then_some(',').into_iter().chain([digit])
    };
    digits.chars().enumerate().flat_map(place).collect()
}
