//! The values of a request, from its path, its query or its form.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

pub(crate) use jobqueue_admin::Given;
use percent_encoding::percent_decode_str;

use crate::browser::page_error::PageError;
use crate::browser::text::line;

/// The field of the rows that an operator has selected. A form sends it once for each row, with the query
/// that names the row's job.
pub(crate) const SELECTED: &str = "selected";

/// The values by name. If a name is given twice, its last value counts.
#[derive(Debug, Default, Clone)]
pub(crate) struct Fields(BTreeMap<String, String>);

impl Fields {
    pub(crate) fn new(values: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(values.into_iter().collect())
    }

    /// Returns the fields, each of which must be in `known` and given once, except [`SELECTED`]. A caller
    /// could otherwise believe that a misspelt condition had been applied.
    pub(crate) fn of_known(
        values: impl IntoIterator<Item = (String, String)>,
        known: &[&str],
    ) -> Result<Self, String> {
        let mut fields = Self::default();
        for (name, value) in values {
            if !known.contains(&name.as_str()) {
                return Err(format!("`{}` is not a field of this request", line(&name)));
            }
            if name == SELECTED
                && let Some(rows) = fields.0.get_mut(SELECTED)
            {
                // A query contains no line break.
                rows.push('\n');
                rows.push_str(&value);
                continue;
            }
            if fields.0.insert(name, value).is_some() {
                return Err("a field is given twice".to_owned());
            }
        }
        Ok(fields)
    }

    pub(crate) fn insert(&mut self, name: &str, value: &str) {
        self.0.insert(name.to_owned(), value.to_owned());
    }

    /// Returns a trimmed value; `None` if it is missing or empty.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// Returns a value exactly as it was sent; `None` if it is missing or empty.
    pub(crate) fn exact(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Returns a value to show again in the form that sent it.
    pub(crate) fn shown(&self, name: &str) -> &str {
        self.exact(name).unwrap_or_default()
    }

    pub(crate) fn required(&self, name: &str) -> Result<&str, PageError> {
        self.exact(name).ok_or_else(|| PageError::invalid(format!("the field `{name}` is missing")))
    }

    /// Returns the fields of each selected row.
    ///
    /// # Errors
    /// No row is selected: that does not mean all rows.
    pub(crate) fn rows(&self) -> Result<Vec<Self>, PageError> {
        let none = || PageError::invalid("nothing was changed: no row is selected");
        self.text(SELECTED).ok_or_else(none)?.split('\n').map(Self::of_row).collect()
    }

    /// Reads the query that names the job of a row.
    fn of_row(row: &str) -> Result<Self, PageError> {
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=')?;
            let value = percent_decode_str(value).decode_utf8().ok()?;
            Some((name.to_owned(), value.into_owned()))
        };
        let pairs: Option<Vec<_>> = row.trim().split('&').map(pair).collect();
        let fields = pairs
            .and_then(|pairs| Self::of_known(pairs, &["queue", "id", "source", "message", "before"]).ok());
        fields.ok_or_else(|| PageError::invalid("nothing was changed: a selected row names no job"))
    }

    pub(crate) fn number<N: std::str::FromStr>(&self, name: &str) -> Result<Option<N>, PageError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let problem = |_| PageError::invalid(format!("`{name}` is not a valid number"));
        text.parse().map(Some).map_err(problem)
    }

    /// Returns a time such as `2026-11-22T15:00:00Z`.
    pub(crate) fn time(&self, name: &str) -> Result<Option<SystemTime>, PageError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let problem =
            |_| PageError::invalid(format!("`{name}` is not a time; write for example 2026-11-22T15:00:00Z"));
        text.parse::<jiff::Timestamp>().map(|time| Some(time.into())).map_err(problem)
    }

    /// Returns a duration such as `90s`, `2h 30m` or `7d`.
    pub(crate) fn duration(&self, name: &str) -> Result<Option<Duration>, PageError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let problem =
            || PageError::invalid(format!("`{name}` is not a duration; write for example 90s, 2h30m or 7d"));
        jobqueue_admin::parse_duration(text).map(Some).ok_or_else(problem)
    }
}
