//! Charts as SVG, drawn on the server. Colours come from the style sheet.

use askama::Template;

use crate::browser::throughput::Minute;

/// The width of a bar with its gap.
const STEP: u32 = 8;

const HEIGHT: u32 = 96;

/// A bar for each minute: completed jobs below, failed attempts above.
#[derive(Debug, Template)]
#[template(path = "chart.html")]
pub(crate) struct Chart {
    bars: Vec<Bar>,
    width: u32,
    height: u32,
    /// The amount of the highest bar.
    pub(crate) most: u64,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    is_small: bool,
}

#[derive(Debug)]
struct Bar {
    x: u32,
    completed: u32,
    failed: u32,
    top: u32,
    middle: u32,
    minutes_ago: usize,
    amounts: Minute,
}

impl askama::filters::HtmlSafe for Chart {}

impl Chart {
    pub(crate) fn hour(minutes: &[Minute]) -> Self {
        let most = minutes.iter().map(|minute| minute.completed + minute.failed).max().unwrap_or_default();
        let bars = minutes.iter().enumerate().map(|(index, minute)| {
            let (completed, failed) = (height(minute.completed, most), height(minute.failed, most));
            let top = HEIGHT.saturating_sub(completed + failed);
            Bar {
                x: u32::try_from(index).unwrap_or_default() * STEP,
                completed,
                failed,
                top,
                middle: top + failed,
                minutes_ago: minutes.len() - 1 - index,
                amounts: *minute,
            }
        });
        let bars: Vec<Bar> = bars.filter(|bar| bar.amounts != Minute::default()).collect();
        Self {
            bars,
            width: u32::try_from(minutes.len()).unwrap_or_default() * STEP,
            height: HEIGHT,
            most,
            completed: minutes.iter().map(|minute| minute.completed).sum(),
            failed: minutes.iter().map(|minute| minute.failed).sum(),
            is_small: false,
        }
    }

    /// Returns the same chart for a cell of a table.
    pub(crate) fn small(minutes: &[Minute]) -> Self {
        Self { is_small: true, ..Self::hour(minutes) }
    }
}

/// Returns the height of a bar: at least 1 for an amount that is not zero.
fn height(amount: u64, most: u64) -> u32 {
    if amount == 0 {
        return 0;
    }
    let height = u128::from(amount) * u128::from(HEIGHT) / u128::from(most.max(1));
    u32::try_from(height).unwrap_or(HEIGHT).clamp(1, HEIGHT)
}
