//! Charts as SVG, rendered on the server. Colours come from the style sheet.

use askama::Template;
use jobqueue_admin::EndedJobs;

use crate::browser::throughput::Hour;

const STEP: usize = 8;
const HEIGHT: u64 = 96;

/// A bar chart of equal intervals of time, each with its completed jobs below and the failures above.
#[derive(Debug, Template)]
#[template(path = "chart.html")]
pub(crate) struct Chart {
    bars: Vec<Bar>,
    /// The number of the first bars that are unknown.
    unknown: usize,
    /// The amount of the highest known bar.
    most: u64,
    completed: u64,
    failed: u64,
    /// Sentences about the bars, to follow the text below the chart.
    pub(crate) note: String,
    words: &'static Words,
    is_small: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Bar {
    completed: u64,
    failed: u64,
}

/// The words of a chart.
#[derive(Debug)]
struct Words {
    span: &'static str,
    unit: &'static str,
    each: &'static str,
    completed: &'static str,
    /// Empty for a chart of one amount.
    failed: &'static str,
}

const HOUR: Words =
    Words { span: "The last hour", unit: "min", each: "a minute", completed: "completed", failed: "failed" };
const DAY: Words = Words {
    span: "The last 24 hours",
    unit: "h",
    each: "an hour",
    completed: "completed",
    failed: "dead-lettered",
};
const DEPTH: Words = Words {
    span: "Jobs in the queue in the last 24 hours",
    unit: "h",
    each: "",
    completed: "or more",
    failed: "",
};

impl askama::filters::HtmlSafe for Chart {}

impl Chart {
    pub(crate) fn hour(hour: Hour) -> Self {
        let note = hour.note();
        let bars = hour.minutes.iter();
        let bars = bars.map(|minute| Bar { completed: minute.completed, failed: minute.failed }).collect();
        Self { note, ..Self::new(&HOUR, bars, hour.unknown) }
    }

    pub(crate) fn small(hour: Hour) -> Self {
        Self { is_small: true, ..Self::hour(hour) }
    }

    /// Returns the chart of the jobs that ended in the last 24 hours.
    pub(crate) fn day(hours: &[Option<EndedJobs>]) -> Self {
        let bar = |hour: EndedJobs| Bar { completed: hour.completed, failed: hour.dead_lettered };
        Self::of_hours(&DAY, hours, bar)
    }

    /// Returns the chart of the least length of a queue at the beginning of the last 24 hours.
    pub(crate) fn depth(hours: &[Option<EndedJobs>]) -> Self {
        Self::of_hours(&DEPTH, hours, |hour| Bar { completed: hour.depth, failed: 0 })
    }

    fn of_hours(words: &'static Words, hours: &[Option<EndedJobs>], bar: fn(EndedJobs) -> Bar) -> Self {
        let unknown = hours.iter().take_while(|hour| hour.is_none()).count();
        Self::new(words, hours.iter().map(|hour| hour.map(bar).unwrap_or_default()).collect(), unknown)
    }

    fn new(words: &'static Words, bars: Vec<Bar>, unknown: usize) -> Self {
        Self {
            unknown,
            most: bars.iter().map(|bar| bar.completed + bar.failed).max().unwrap_or_default(),
            completed: bars.iter().map(|bar| bar.completed).sum(),
            failed: bars.iter().map(|bar| bar.failed).sum(),
            note: String::new(),
            words,
            is_small: false,
            bars,
        }
    }

    pub(crate) fn completed(&self) -> String {
        self.sum(self.completed)
    }

    pub(crate) fn failed(&self) -> String {
        self.sum(self.failed)
    }

    /// Returns the amount of the highest bar.
    pub(crate) fn most(&self) -> String {
        if self.most == 0 { self.sum(0) } else { self.most.to_string() }
    }

    /// Returns a sum over the known bars as text: a lower bound if others are unknown, and unknown if it is 0.
    fn sum(&self, known: u64) -> String {
        match (self.unknown, known) {
            (0, known) => known.to_string(),
            (_, 0) => "?".to_owned(),
            (_, known) => format!("≥ {known}"),
        }
    }

    /// Returns the text of the chart for viewers who do not see it.
    fn label(&self) -> String {
        let Words { span, unit, each, completed, failed } = self.words;
        let amounts = if failed.is_empty() {
            format!("{span}: at most {}", self.most())
        } else {
            let (done, bad, most) = (self.completed(), self.failed(), self.most());
            format!("{span}: {done} {completed}, {bad} {failed}; at most {most} {each}")
        };
        match self.unknown {
            0 => amounts,
            unknown => format!("{amounts}; the first {unknown} {unit} are unknown"),
        }
    }

    /// Returns the height of a bar, which is at least 1 unless the amount is 0.
    fn height(&self, amount: &u64) -> u64 {
        let height = u128::from(*amount) * u128::from(HEIGHT) / u128::from(self.most.max(1));
        u64::try_from(height).unwrap_or(HEIGHT).clamp(1.min(*amount), HEIGHT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_that_were_not_counted_are_unknown() {
        let mut hour = EndedJobs::default();
        (hour.completed, hour.dead_lettered, hour.depth) = (4, 1, 7);
        let hours = [None, None, Some(EndedJobs::default()), Some(hour)];
        let day = Chart::day(&hours).render().unwrap();
        let label = "The last 24 hours: ≥ 4 completed, ≥ 1 dead-lettered; at most 5 an hour; the first 2 h are unknown";
        assert!(
            day.contains(label) && day.contains(r#"<rect class="unknown" x="0" y="0" width="16""#),
            "{day}"
        );
        assert_eq!(day.matches("<title>").count(), 1, "{day}");
        // newcomers 33: the sum of unknown hours was 0.
        let unknown = Chart::day(&[None, Some(EndedJobs::default())]);
        assert_eq!([unknown.completed(), unknown.failed(), unknown.most()], ["?"; 3]);
        let known = Chart::day(&[Some(EndedJobs::default())]);
        assert_eq!([known.completed(), known.failed(), known.most()], ["0"; 3]);
        let depth = Chart::depth(&hours).render().unwrap();
        assert!(depth.contains("at most 7; the first 2 h are unknown"), "{depth}");
        assert!(depth.contains("<title>0 h ago: 7 or more</title>"), "{depth}");
    }
}
