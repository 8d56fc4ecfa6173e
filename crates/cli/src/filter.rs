//! The arguments that select dead letters.

use std::time::Duration;

use clap::Args;
use jobqueue_admin::DeadLetterFilter;

use crate::text::duration;

/// The filters for dead letters. A dead letter must match all filters given.
#[derive(Args)]
pub(crate) struct Filter {
    /// Only jobs of this kind
    #[arg(long)]
    kind: Option<String>,
    /// Only dead letters with this reason, such as attempts_exhausted
    #[arg(long)]
    reason: Option<String>,
    /// Only those with this text in their id, key, error or payload
    #[arg(long)]
    text: Option<String>,
    /// Only the job with this id; may be repeated
    #[arg(long)]
    id: Vec<String>,
    /// Only jobs of this sender: two senders may use the same id
    #[arg(long)]
    source: Option<String>,
    /// Only dead letters that are at least this old
    #[arg(long, value_name = "TIME", value_parser = duration)]
    older_than: Option<Duration>,
    /// Only dead letters that are younger than this
    #[arg(long, value_name = "TIME", value_parser = duration)]
    younger_than: Option<Duration>,
}

impl Filter {
    /// Returns the filter of the library.
    pub(crate) fn selection(&self) -> DeadLetterFilter {
        let mut filter = DeadLetterFilter::new();
        if let Some(kind) = &self.kind {
            filter = filter.kind(kind);
        }
        if let Some(reason) = &self.reason {
            filter = filter.reason(reason);
        }
        if let Some(text) = &self.text {
            filter = filter.text(text);
        }
        if !self.id.is_empty() {
            filter = filter.ids(self.id.iter().map(String::as_str));
        }
        if let Some(source) = &self.source {
            filter = filter.source(source);
        }
        if let Some(age) = self.older_than {
            filter = filter.older_than(age);
        }
        if let Some(age) = self.younger_than {
            filter = filter.younger_than(age);
        }
        filter
    }
}
