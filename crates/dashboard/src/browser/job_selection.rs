//! The conditions on the jobs of a queue, read from a form or an address and written into addresses.

use jobqueue_admin::{JobFilter, RawJob};

use crate::browser::fields::{Fields, Given};
use crate::browser::page_error::PageError;
use crate::browser::redact::Redactor;
use crate::browser::selection::query;

const FIELDS: [&str; 4] = ["kind", "key", "error", "batch"];

/// An operator's selection among the jobs of a queue.
#[derive(Debug, Clone, Default)]
pub(crate) struct JobSelection {
    fields: Fields,
    filter: JobFilter,
}

impl JobSelection {
    pub(crate) fn read(fields: &Fields, redactor: &Redactor) -> Result<Self, PageError> {
        if redactor.hides() && (fields.exact("key").is_some() || fields.exact("error").is_some()) {
            let text = "texts are hidden here, so jobs cannot be searched by key or error";
            return Err(PageError::forbidden(text));
        }
        let value = |name| match name {
            // A key may begin or end with blanks.
            "key" | "error" => fields.exact(name),
            _ => fields.text(name),
        };
        let filter = JobFilter::new()
            .given(value("kind"), JobFilter::kind)
            .given(value("key"), JobFilter::key)
            .given(value("error"), JobFilter::error)
            .given(value("batch"), JobFilter::batch);
        let given = FIELDS.into_iter().filter_map(|name| Some((name.to_owned(), value(name)?.to_owned())));
        Ok(Self { fields: Fields::new(given), filter })
    }

    pub(crate) fn filter(&self) -> JobFilter {
        self.filter.clone()
    }

    /// Returns whether the job meets the conditions, for a storage that does not search its jobs.
    pub(crate) fn selects(&self, job: &RawJob) -> bool {
        let is_child = |id: &str| job.batch.as_ref().is_some_and(|batch| batch.id == id);
        self.filter.selects_in_any_batch(job) && self.fields.exact("batch").is_none_or(is_child)
    }

    /// Returns whether there is no condition.
    pub(crate) fn is_empty(&self) -> bool {
        self.fields().is_empty()
    }

    /// Returns a value to show again in the form that sent it.
    pub(crate) fn shown(&self, name: &str) -> &str {
        self.fields.shown(name)
    }

    pub(crate) fn fields(&self) -> Vec<(&'static str, &str)> {
        FIELDS.into_iter().filter_map(|name| Some((name, self.fields.exact(name)?))).collect()
    }

    /// Returns the query of the jobs of a state that meet the conditions; of the page that starts at `from`,
    /// if it is given.
    pub(crate) fn query<'s>(&'s self, state: &'s str, from: Option<&'s str>) -> String {
        let from = from.map(|from| ("from", from));
        query([("state", state)].into_iter().chain(self.fields()).chain(from))
    }
}
