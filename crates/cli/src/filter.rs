//! The arguments that select dead letters.

use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use jobqueue_admin::DeadLetterFilter;

use crate::args::Given;
use crate::text::duration;

/// The filters for dead letters. A dead letter must match all filters given.
#[derive(Args)]
pub(crate) struct Filter {
    /// Only jobs of this kind
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    kind: Option<String>,
    /// Only jobs with this key
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    key: Option<String>,
    /// Only dead letters with this reason, such as attempts_exhausted
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    reason: Option<String>,
    /// Only dead letters with this text in their id, key, error or payload
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    text: Option<String>,
    /// Only dead letters of this group of `dead stats`
    #[arg(long, value_name = "FINGERPRINT", value_parser = NonEmptyStringValueParser::new())]
    error: Option<String>,
    /// Only the job with this id; may be repeated
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    id: Vec<String>,
    /// Only jobs of this sender: two senders may use the same id
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    source: Option<String>,
    /// Only dead letters that are at least this old
    #[arg(long, value_name = "TIME", value_parser = duration)]
    older_than: Option<Duration>,
    /// Only dead letters that are younger than this
    #[arg(long, value_name = "TIME", value_parser = duration)]
    younger_than: Option<Duration>,
}

impl Filter {
    pub(crate) fn selection(&self) -> DeadLetterFilter {
        DeadLetterFilter::new()
            .given(self.kind.as_ref(), DeadLetterFilter::kind)
            .given(self.key.as_ref(), DeadLetterFilter::key)
            .given(self.reason.as_ref(), DeadLetterFilter::reason)
            .given(self.text.as_ref(), DeadLetterFilter::text)
            .given(self.error.as_ref(), DeadLetterFilter::fingerprint)
            .given(Some(&self.id).filter(|ids| !ids.is_empty()), DeadLetterFilter::ids)
            .given(self.source.as_ref(), DeadLetterFilter::source)
            .given(self.older_than, DeadLetterFilter::older_than)
            .given(self.younger_than, DeadLetterFilter::younger_than)
    }
}
