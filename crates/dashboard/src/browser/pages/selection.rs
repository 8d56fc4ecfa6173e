//! The filter of dead letters, as a form and as a part of an address.

use std::time::Duration;

use jobqueue_admin::DeadLetterFilter;

use super::PageError;
use crate::browser::fields::Fields;
use crate::browser::redact::Redactor;
use crate::browser::text::encoded;

/// An operator's selection among the dead letters of a queue.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selection {
    pub(crate) kind: String,
    pub(crate) reason: String,
    pub(crate) text: String,
    pub(crate) id: String,
    pub(crate) source: String,
    /// The lengths of time as they were written.
    pub(crate) older: String,
    pub(crate) younger: String,
    ages: (Option<Duration>, Option<Duration>),
}

impl Selection {
    pub(crate) fn read(fields: &Fields, redactor: &Redactor) -> Result<Self, PageError> {
        let text = |name| fields.text(name).unwrap_or_default().to_owned();
        if redactor.hides() && fields.text("text").is_some() {
            return Err(PageError::forbidden(
                "texts are hidden here, so dead letters cannot be searched by text",
            ));
        }
        Ok(Self {
            kind: text("kind"),
            reason: text("reason"),
            text: text("text"),
            // An id may begin or end with blanks.
            id: fields.exact("id").unwrap_or_default().to_owned(),
            source: fields.exact("source").unwrap_or_default().to_owned(),
            older: text("older"),
            younger: text("younger"),
            ages: (fields.duration("older")?, fields.duration("younger")?),
        })
    }

    /// Returns the filter for the admin core; without a field it selects all.
    pub(crate) fn filter(&self) -> DeadLetterFilter {
        let mut filter = DeadLetterFilter::all();
        if !self.kind.is_empty() {
            filter = filter.kind(&self.kind);
        }
        if !self.reason.is_empty() {
            filter = filter.reason(&self.reason);
        }
        if !self.text.is_empty() {
            filter = filter.text(&self.text);
        }
        if !self.id.is_empty() {
            filter = filter.ids([self.id.clone()]);
        }
        if !self.source.is_empty() {
            filter = filter.source(&self.source);
        }
        if let Some(age) = self.ages.0 {
            filter = filter.older_than(age);
        }
        if let Some(age) = self.ages.1 {
            filter = filter.younger_than(age);
        }
        filter
    }

    /// Returns the fields that are set, with their values.
    pub(crate) fn fields(&self) -> Vec<(&'static str, &str)> {
        let Self { kind, reason, text, id, source, older, younger, .. } = self;
        let all: [(&'static str, &str); 7] = [
            ("kind", kind),
            ("reason", reason),
            ("text", text),
            ("id", id),
            ("source", source),
            ("older", older),
            ("younger", younger),
        ];
        all.into_iter().filter(|(_, value)| !value.is_empty()).collect()
    }

    /// Returns the fields as a part of an address, with a question mark if there are any.
    pub(crate) fn query(&self) -> String {
        let pairs: Vec<_> =
            self.fields().into_iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
    }
}
