//! Charts as SVG, rendered on the server. Colours come from the style sheet.

use askama::Template;

use crate::browser::throughput::Minute;

const STEP: usize = 8;
const HEIGHT: u64 = 96;

/// A bar chart of an hour: for each minute, completed jobs below and failed attempts above.
#[derive(Debug, Template)]
#[template(path = "chart.html")]
pub(crate) struct Chart {
    minutes: Vec<Minute>,
    /// The amount of the highest bar.
    pub(crate) most: u64,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    is_small: bool,
}

impl askama::filters::HtmlSafe for Chart {}

impl Chart {
    pub(crate) fn hour(minutes: Vec<Minute>) -> Self {
        Self {
            most: minutes.iter().map(|minute| minute.completed + minute.failed).max().unwrap_or_default(),
            completed: minutes.iter().map(|minute| minute.completed).sum(),
            failed: minutes.iter().map(|minute| minute.failed).sum(),
            is_small: false,
            minutes,
        }
    }

    pub(crate) fn small(minutes: Vec<Minute>) -> Self {
        Self { is_small: true, ..Self::hour(minutes) }
    }

    /// Returns the height of a bar, which is at least 1 unless the amount is 0.
    fn height(&self, amount: &u64) -> u64 {
        let height = u128::from(*amount) * u128::from(HEIGHT) / u128::from(self.most.max(1));
        u64::try_from(height).unwrap_or(HEIGHT).clamp(1.min(*amount), HEIGHT)
    }
}
