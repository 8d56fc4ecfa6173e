//! Checks the bounds of `range(…)` and `length(…)` that are literals.

use std::cmp::Ordering;

use crate::attr::{Bound, Bounds, Literal};
use crate::ctxt::Ctxt;
use crate::shape::Shape;

pub(super) fn range(ctxt: &Ctxt, bounds: &Bounds, shape: &Shape) {
    if unbounded(ctxt, bounds, "range") || not_numbers(ctxt, bounds) {
        return;
    }
    let mut fits = true;
    for bound in [&bounds.low, &bounds.high].into_iter().flatten() {
        if let Some(problem) = misfit(bound, shape) {
            ctxt.error(&bound.expr, problem);
            fits = false;
        }
    }
    if fits && matches!(shape, Shape::Unsigned(..)) && ends_at_zero(bounds) {
        report_ends_at_zero(ctxt, bounds, "range");
    } else if fits && is_empty(bounds) {
        report_empty(ctxt, bounds, "range");
    }
}

pub(super) fn length(ctxt: &Ctxt, bounds: &Bounds) {
    if unbounded(ctxt, bounds, "length") || not_numbers(ctxt, bounds) {
        return;
    }
    let mut fits = true;
    for bound in [&bounds.low, &bounds.high].into_iter().flatten() {
        let problem = match bound.literal {
            Literal::Integer { negative: true, .. } => "a length cannot be negative; use 0 or more",
            Literal::Float { .. } => "a length is a whole number; remove the fraction",
            Literal::Integer { magnitude, .. } if magnitude > u32::MAX.into() => {
                "no message is that long; leave the bound out, or use one up to 4294967295"
            }
            _ => continue,
        };
        ctxt.error(&bound.expr, problem);
        fits = false;
    }
    if fits && ends_at_zero(bounds) {
        report_ends_at_zero(ctxt, bounds, "length");
    } else if fits && is_empty(bounds) {
        report_empty(ctxt, bounds, "length");
    }
}

/// Returns whether the order of the bounds is unknown here, so that the compiler must check it.
pub(crate) fn is_checked_by_compiler(bounds: &Bounds) -> bool {
    match (&bounds.low, &bounds.high) {
        (Some(low), Some(high)) => compare(low, high).is_none(),
        _ => false,
    }
}

fn unbounded(ctxt: &Ctxt, bounds: &Bounds, name: &str) -> bool {
    let unbounded = bounds.low.is_none() && bounds.high.is_none();
    if unbounded {
        ctxt.error(
            &bounds.tokens,
            format!("`{name}(..)` allows everything; give it a bound, such as `{name}(1..)`, or remove it"),
        );
    }
    unbounded
}

fn not_numbers(ctxt: &Ctxt, bounds: &Bounds) -> bool {
    let mut found = false;
    for bound in [&bounds.low, &bounds.high].into_iter().flatten() {
        if matches!(bound.literal, Literal::NotANumber) {
            ctxt.error(&bound.expr, "a bound is a number or a constant");
            found = true;
        }
    }
    found
}

/// Returns whether the range is `..0`, which contains only negative values.
fn ends_at_zero(bounds: &Bounds) -> bool {
    let high = bounds.high.as_ref().map(|high| &high.literal);
    bounds.low.is_none() && !bounds.closed && matches!(high, Some(Literal::Integer { magnitude: 0, .. }))
}

fn report_ends_at_zero(ctxt: &Ctxt, bounds: &Bounds, name: &str) {
    ctxt.error(&bounds.tokens, format!("no value is in this range; write `{name}(..=0)` for 0 alone"));
}

fn report_empty(ctxt: &Ctxt, bounds: &Bounds, name: &str) {
    let (Some(low), Some(high)) = (&bounds.low, &bounds.high) else { return };
    let (low, high) = (low.text(), high.text());
    let advice = if bounds.closed {
        format!("swap the bounds: `{name}({high}..={low})`")
    } else {
        format!("`..` leaves out the upper bound, write `{name}(a..=b)` with a not above b")
    };
    ctxt.error(&bounds.tokens, format!("no value is in this range; {advice}"));
}

fn is_empty(bounds: &Bounds) -> bool {
    let (Some(low), Some(high)) = (&bounds.low, &bounds.high) else { return false };
    match compare(low, high) {
        Some(Ordering::Greater) => true,
        Some(Ordering::Equal) => !bounds.closed,
        _ => false,
    }
}

fn compare(low: &Bound, high: &Bound) -> Option<Ordering> {
    let integer = |literal: &Literal| match literal {
        // Of two negative numbers, the number with the greater magnitude is smaller.
        Literal::Integer { negative: true, magnitude } => Some((false, u128::MAX - magnitude)),
        Literal::Integer { magnitude, .. } => Some((true, *magnitude)),
        _ => None,
    };
    match (integer(&low.literal), integer(&high.literal)) {
        (Some(low), Some(high)) => Some(low.cmp(&high)),
        _ => float(low)?.partial_cmp(&float(high)?),
    }
}

fn float(bound: &Bound) -> Option<f64> {
    let is_known = matches!(bound.literal, Literal::Integer { .. } | Literal::Float { .. });
    if is_known { bound.text().parse().ok() } else { None }
}

fn misfit(bound: &Bound, shape: &Shape) -> Option<String> {
    let text = bound.text();
    match (&bound.literal, shape) {
        (Literal::Float { .. }, Shape::Unsigned(name, _) | Shape::Signed(name, ..)) => {
            Some(format!("a bound of `{name}` is a whole number; remove the fraction"))
        }
        (Literal::Integer { negative, magnitude }, Shape::Unsigned(name, max)) => {
            (*negative || magnitude > max).then(|| outside(&text, name, "0", &max.to_string()))
        }
        (Literal::Integer { negative, magnitude }, Shape::Signed(name, min, max)) => {
            let limit = if *negative { min.unsigned_abs() } else { max.unsigned_abs() };
            (*magnitude > limit).then(|| outside(&text, name, &min.to_string(), &max.to_string()))
        }
        (_, Shape::Float("f32")) => {
            let wide = float(bound)?;
            (wide.abs() > f32::MAX.into())
                .then(|| format!("{text} is outside `f32`; use a smaller bound, or `f64`"))
        }
        _ => None,
    }
}

fn outside(bound: &str, name: &str, min: &str, max: &str) -> String {
    format!("{bound} is outside `{name}`; use a bound from {min} to {max}, or leave this end open")
}
