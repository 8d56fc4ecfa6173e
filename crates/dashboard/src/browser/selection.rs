//! The filter of dead letters, read from a form or an address and written into addresses.

use jobqueue_admin::DeadLetterFilter;

use crate::browser::fields::{Fields, Given};
use crate::browser::page_error::PageError;
use crate::browser::redact::Redactor;
use crate::browser::text::encoded;

const FIELDS: [&str; 9] = ["kind", "key", "reason", "text", "error", "id", "source", "older", "younger"];

/// An operator's selection among the dead letters of a queue.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selection {
    fields: Fields,
    filter: DeadLetterFilter,
    /// The number of rows that the operator has selected instead of a filter.
    rows: Option<usize>,
}

impl Selection {
    /// Returns the selection of a number of rows, which a plan names.
    pub(crate) fn of_rows(rows: usize) -> Self {
        Self { rows: Some(rows), ..Self::default() }
    }

    pub(crate) fn rows(&self) -> Option<usize> {
        self.rows
    }

    pub(crate) fn read(fields: &Fields, redactor: &Redactor) -> Result<Self, PageError> {
        if redactor.hides() && (fields.text("text").is_some() || fields.exact("key").is_some()) {
            let text = "texts are hidden here, so dead letters cannot be searched by text or key";
            return Err(PageError::forbidden(text));
        }
        let filter = DeadLetterFilter::new()
            .given(fields.text("kind"), DeadLetterFilter::kind)
            // A key or an id may begin or end with blanks.
            .given(fields.exact("key"), DeadLetterFilter::key)
            .given(fields.text("reason"), DeadLetterFilter::reason)
            .given(fields.text("text"), DeadLetterFilter::text)
            .given(fields.text("error"), DeadLetterFilter::fingerprint)
            .given(fields.exact("id"), |filter, id| filter.ids([id]))
            .given(fields.exact("source"), DeadLetterFilter::source)
            .given(fields.duration("older")?, DeadLetterFilter::older_than)
            .given(fields.duration("younger")?, DeadLetterFilter::younger_than);
        let filter = if filter.is_empty() { DeadLetterFilter::all() } else { filter };
        let value = |name| match name {
            "id" | "key" | "source" => fields.exact(name),
            _ => fields.text(name),
        };
        let given = FIELDS.into_iter().filter_map(|name| Some((name.to_owned(), value(name)?.to_owned())));
        Ok(Self { fields: Fields::new(given), filter, rows: None })
    }

    /// Returns the filter for the admin core. Without fields it selects all dead letters.
    pub(crate) fn filter(&self) -> DeadLetterFilter {
        self.filter.clone()
    }

    /// Returns a value to show again in the form that sent it.
    pub(crate) fn shown(&self, name: &str) -> &str {
        self.fields.shown(name)
    }

    pub(crate) fn fields(&self) -> Vec<(&'static str, &str)> {
        FIELDS.into_iter().filter_map(|name| Some((name, self.fields.exact(name)?))).collect()
    }

    /// Returns the fields as a query with its question mark; empty without fields.
    pub(crate) fn query(&self) -> String {
        query(self.fields().into_iter())
    }

    /// Returns the query of the page of these dead letters that starts at `from`.
    pub(crate) fn query_from<'s>(&'s self, from: &'s str) -> String {
        query(self.fields().into_iter().chain([("from", from)]))
    }

    /// Returns the query that selects the dead letters with one error among these.
    pub(crate) fn query_of_error<'s>(&'s self, fingerprint: &'s str) -> String {
        let others = self.fields().into_iter().filter(|(name, _)| *name != "error");
        query(others.chain([("error", fingerprint)]))
    }
}

/// Returns fields as a query with its question mark; empty without fields.
pub(crate) fn query<'s>(fields: impl Iterator<Item = (&'s str, &'s str)>) -> String {
    let pairs: Vec<_> = fields.map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}
