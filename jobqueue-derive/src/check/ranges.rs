//! Checks the bounds of `range(…)` and `length(…)`, as far as they are literals.

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
    if fits && is_empty(bounds) {
        empty(ctxt, bounds, "range");
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
    if fits && is_empty(bounds) {
        empty(ctxt, bounds, "length");
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

fn empty(ctxt: &Ctxt, bounds: &Bounds, name: &str) {
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
    match (&low.literal, &high.literal) {
        (
            Literal::Integer { negative: false, magnitude: low },
            Literal::Integer { negative: false, magnitude: high },
        ) => Some(low.cmp(high)),
        (
            Literal::Integer { negative: true, magnitude: low },
            Literal::Integer { negative: true, magnitude: high },
        ) => Some(high.cmp(low)),
        (Literal::Integer { negative: low, .. }, Literal::Integer { .. }) => {
            Some(if *low { Ordering::Less } else { Ordering::Greater })
        }
        (low, high) => float(low)?.partial_cmp(&float(high)?),
    }
}

fn float(literal: &Literal) -> Option<f64> {
    match literal {
        Literal::Integer { negative, magnitude } => {
            format!("{}{magnitude}", if *negative { "-" } else { "" }).parse().ok()
        }
        Literal::Float { text } => text.parse().ok(),
        _ => None,
    }
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
        (literal, Shape::Float("f32")) => {
            let wide = float(literal)?;
            (wide.abs() > f32::MAX.into())
                .then(|| format!("{text} is outside `f32`; use a smaller bound, or `f64`"))
        }
        _ => None,
    }
}

fn outside(bound: &str, name: &str, min: &str, max: &str) -> String {
    format!("{bound} is outside `{name}`; use a bound from {min} to {max}, or leave this end open")
}
