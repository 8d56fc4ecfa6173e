//! The event of each action that changes something.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::SystemTime;

use serde::Serialize;

use super::access::Action;
use super::text::rfc3339;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind};
use crate::job::outcome::chain;

/// An action of an operator, reported when it has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct OperatorEvent {
    /// The time at which the action ended.
    #[serde(serialize_with = "rfc3339")]
    pub at: SystemTime,
    /// The operator, as the embedding program named them.
    pub operator: String,
    /// The action.
    pub action: Action,
    /// The object of the action: a queue, a schedule, or a queue and a job.
    pub subject: String,
    /// The result.
    #[serde(flatten)]
    pub result: OperatorResult,
}

/// The result of an operator's action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "result", content = "detail", rename_all = "snake_case")]
#[non_exhaustive]
pub enum OperatorResult {
    /// The action was performed; the text describes its changes.
    Done(String),
    /// The operator's access level does not allow the action; nothing was changed.
    Refused(String),
    /// The action failed; the text says why, and whether a part was done.
    Failed(String),
    /// The caller dropped the action before it ended; a part may be done.
    Interrupted,
}

impl OperatorResult {
    fn of_error(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Forbidden => Self::Refused(error.to_string()),
            _ => Self::Failed(chain(error)),
        }
    }
}

type Listener = Arc<dyn Fn(&OperatorEvent) + Send + Sync>;

#[derive(Clone, Default)]
pub(super) struct Listeners(Vec<Listener>);

impl Listeners {
    pub(super) fn add(&mut self, listener: impl Fn(&OperatorEvent) + Send + Sync + 'static) {
        self.0.push(Arc::new(listener));
    }

    fn tell(&self, event: &OperatorEvent) {
        tracing::info!(
            operator = %event.operator.escape_debug(),
            action = %event.action,
            subject = %event.subject.escape_debug(),
            result = ?event.result,
            "operator action"
        );
        for listener in &self.0 {
            if catch_unwind(AssertUnwindSafe(|| listener(event))).is_err() {
                tracing::error!("a listener of operator events panicked; the action is not affected");
            }
        }
    }
}

/// An action in progress. Dropping it before its end records an interruption.
pub(super) struct Pending<'a> {
    listeners: &'a Listeners,
    event: Option<OperatorEvent>,
    now: &'a dyn Clock,
}

impl<'a> Pending<'a> {
    pub(super) fn new(
        listeners: &'a Listeners,
        now: &'a dyn Clock,
        operator: &str,
        action: Action,
        subject: String,
    ) -> Self {
        let event = OperatorEvent {
            at: now.now(),
            operator: operator.to_owned(),
            action,
            subject,
            result: OperatorResult::Interrupted,
        };
        Self { listeners, event: Some(event), now }
    }

    /// Records the result; `summary` describes the changes.
    pub(super) fn ended<T>(mut self, result: &Result<T, Error>, summary: impl FnOnce(&T) -> String) {
        let Some(event) = &mut self.event else { return };
        event.result = match result {
            Ok(value) => OperatorResult::Done(summary(value)),
            Err(error) => OperatorResult::of_error(error),
        };
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let Some(mut event) = self.event.take() {
            event.at = self.now.now();
            self.listeners.tell(&event);
        }
    }
}
