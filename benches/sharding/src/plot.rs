//! The plot: a curve for each number of accounts, both axes in powers of two.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::report::{Cell, thousands};

const LEFT: f64 = 80.0;
const TOP: f64 = 20.0;
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 340.0;
const COLOURS: &[&str] = &["#1f6feb", "#d29922", "#2da44e", "#a371f7"];

/// The whole picture.
pub(crate) fn svg(cells: &[Cell]) -> String {
    let most_shards = cells.iter().map(|cell| cell.setting.shards).max().unwrap_or(1);
    let fewest = cells.iter().map(|cell| cell.outcome.throughput).fold(f64::MAX, f64::min).max(1.0);
    let most = cells.iter().map(|cell| cell.outcome.throughput).fold(1.0, f64::max);
    let (low, high) = ((fewest / 500.0).log2().floor(), (most / 500.0).log2().ceil());
    let x = |shards: f64| LEFT + WIDTH * shards.log2() / f64::from(most_shards).log2().max(1.0);
    let y = |rate: f64| TOP + HEIGHT * (high - (rate.max(1.0) / 500.0).log2()) / (high - low).max(1.0);

    let mut body = String::new();
    // Writing to a string does not fail.
    let mut put = |line: std::fmt::Arguments<'_>| {
        let _ = writeln!(body, "{line}");
    };
    for power in low as i32..=high as i32 {
        let rate = 500.0 * f64::from(power).exp2();
        let (at, label) = (y(rate), thousands(rate));
        put(format_args!(
            r##"<line x1="{LEFT}" x2="{}" y1="{at:.1}" y2="{at:.1}" stroke="#d0d7de"/>"##,
            LEFT + WIDTH
        ));
        put(format_args!(r#"<text x="{}" y="{:.1}" text-anchor="end">{label}</text>"#, LEFT - 8.0, at + 4.0));
    }
    for shards in (0..=most_shards.ilog2()).map(|power| 1_u32 << power) {
        let (at, low) = (x(f64::from(shards)), TOP + HEIGHT + 18.0);
        put(format_args!(r#"<text x="{at:.1}" y="{low}" text-anchor="middle">{shards}</text>"#));
    }
    let (middle, bottom) = (LEFT + WIDTH / 2.0, TOP + HEIGHT + 38.0);
    put(format_args!(r#"<text x="{middle}" y="{bottom}" text-anchor="middle">shards</text>"#));
    put(format_args!(r#"<text x="8" y="14">jobs a second</text>"#));

    let mut curves = BTreeMap::<u32, Vec<(f64, f64)>>::new();
    for cell in cells {
        let place = (x(f64::from(cell.setting.shards)), y(cell.outcome.throughput));
        curves.entry(cell.setting.accounts).or_default().push(place);
    }
    for ((accounts, places), colour) in curves.into_iter().zip(COLOURS.iter().cycle()) {
        curve(accounts, &places, colour, &mut put);
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 740 410\" width=\"740\" height=\"410\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

/// One curve, with the number of its accounts at its end.
fn curve(accounts: u32, places: &[(f64, f64)], colour: &str, put: &mut impl FnMut(std::fmt::Arguments<'_>)) {
    let points: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let points = points.join(" ");
    put(format_args!(r#"<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>"#));
    for (x, y) in places {
        put(format_args!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"/>"#));
    }
    if let Some((x, y)) = places.last() {
        let name = if accounts == 1 { "account" } else { "accounts" };
        put(format_args!(
            r#"<text x="{:.1}" y="{:.1}" fill="{colour}">{accounts} {name}</text>"#,
            x + 8.0,
            y + 4.0
        ));
    }
}
