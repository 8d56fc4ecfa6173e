//! Replaces texts that the embedding program hides.

use std::sync::Arc;

use jobqueue_admin::AccessLevel;

/// A text of a job that is about to be shown. The hook of [`Dashboard::redact`](crate::Dashboard::redact) may
/// replace it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shown<'a> {
    /// The queue.
    pub queue: &'a str,
    /// The kind of the job; `None` if the kind is unknown, as for a message that is not an event, or the
    /// error of a bulk operation. A hook that hides the texts of one kind should hide these texts as well.
    pub kind: Option<&'a str>,
    /// The field of the job.
    pub field: Field<'a>,
    /// The text as it would be shown: JSON is indented, bytes are hexadecimal digits, and a long text is cut.
    pub text: &'a str,
    /// The name of the operator who views the page.
    pub operator: &'a str,
    /// The rights of this operator.
    pub access: &'a AccessLevel,
}

/// A field of a job that may hold personal data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Field<'a> {
    /// The payload.
    Payload,
    /// The checkpoint.
    Checkpoint,
    /// The header with this name.
    Header(&'a str),
    /// The key.
    Key,
    /// The text of an error, or a sentence that may quote an error.
    Error,
    /// The text that a handler reported with its progress.
    Progress,
}

type Hook = dyn Fn(&Shown<'_>) -> Option<String> + Send + Sync;

/// The function of the embedding program that replaces texts.
#[derive(Clone, Default)]
pub(crate) struct Redactor(Option<Arc<Hook>>);

impl Redactor {
    pub(crate) fn new(hook: impl Fn(&Shown<'_>) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hook)))
    }

    pub(crate) fn apply(&self, shown: &Shown<'_>) -> String {
        let replaced = self.0.as_ref().and_then(|hook| hook(shown));
        replaced.unwrap_or_else(|| shown.text.to_owned())
    }

    /// Returns whether texts may be hidden. A search by text is then refused, because it would reveal hidden
    /// texts.
    pub(crate) fn hides(&self) -> bool {
        self.0.is_some()
    }
}

jobqueue_storage::debug_fields! {
    Redactor(0.is_some())
}
