//! The filters of the templates. Untrusted text must pass through [`line`].
#![allow(unreachable_pub, reason = "the macro generates public types")]

use std::time::SystemTime;

use askama::{Result, Values, filter_fn};

use crate::browser::text::{self, Timed, When};

#[filter_fn]
pub(crate) fn line(text: impl AsRef<str>, _: &dyn Values) -> Result<String> {
    Ok(text::line(text.as_ref()))
}

#[filter_fn]
pub(crate) fn error(text: impl AsRef<str>, _: &dyn Values) -> Result<String> {
    Ok(text::error_text(text.as_ref()))
}

#[filter_fn]
pub(crate) fn encoded(text: impl AsRef<str>, _: &dyn Values) -> Result<String> {
    Ok(text::encoded(text.as_ref()))
}

#[filter_fn]
pub(crate) fn amount(number: &u64, _: &dyn Values) -> Result<String> {
    Ok(text::amount(*number))
}

#[filter_fn]
pub(crate) fn known(number: &Option<u64>, _: &dyn Values) -> Result<String> {
    Ok(text::known(*number))
}

#[filter_fn]
pub(crate) fn time(at: &SystemTime, _: &dyn Values) -> Result<When> {
    Ok(When::of(*at))
}

/// Shows a time that is stored as RFC 3339 text.
#[filter_fn]
pub(crate) fn written(at: impl AsRef<str>, _: &dyn Values) -> Result<When> {
    Ok(When::read(at.as_ref()))
}

/// Shows a text in one line, and the times in it like other times.
#[filter_fn]
pub(crate) fn timed(text: impl AsRef<str>, _: &dyn Values) -> Result<Timed> {
    Ok(Timed::of(&text::line(text.as_ref())))
}

/// Shows a number of seconds as a short duration.
#[filter_fn]
pub(crate) fn age(seconds: &f64, _: &dyn Values) -> Result<String> {
    let time = std::time::Duration::try_from_secs_f64(*seconds);
    Ok(time.map_or_else(|_| "-".to_owned(), text::age))
}
