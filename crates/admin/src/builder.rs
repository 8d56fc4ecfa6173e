//! The settings of an operator's view.

use std::sync::Arc;

use jobqueue::job::BoxError;
use jobqueue::message::QueueMessage;

use super::{AccessLevel, Admin, OperatorEvent};

/// Builds an [`Admin`]. Created by [`Admin::builder`].
#[derive(Debug)]
#[must_use = "an admin is made by `build`"]
pub struct AdminBuilder {
    pub(super) admin: Admin,
}

impl AdminBuilder {
    jobqueue_storage::setters! {
        /// Sets the actions that are allowed. The default is [`AccessLevel::ReadOnly`].
        access(access: AccessLevel) => admin.access;

        /// Sets the name of the operator, for events and for dead letters of cancelled jobs. The default is
        /// `unknown`.
        operator(name from Arc<str>) => admin.operator;
    }

    /// Calls `listener` before each action, and again when the action was performed, refused, failed or
    /// interrupted. The listener must return quickly; a panic in it is logged.
    pub fn on_event(mut self, listener: impl Fn(&OperatorEvent) + Send + Sync + 'static) -> Self {
        self.admin.recorders.add_listener(listener);
        self
    }

    /// Calls `recorder` like [`on_event`](Self::on_event), for an audit: an action whose start cannot be
    /// recorded is not taken. If the end cannot be recorded, the action fails with
    /// [`Storage`](jobqueue::ErrorKind::Storage), and the text says what was done.
    pub fn audit(
        mut self,
        recorder: impl Fn(&OperatorEvent) -> Result<(), BoxError> + Send + Sync + 'static,
    ) -> Self {
        self.admin.recorders.add(recorder);
        self
    }

    /// Lets [`Admin::send`] check each payload of the kinds of `M` as a worker does: decodes it with the
    /// codec of its version, upgrades it and validates it. A payload that the worker would not run is refused
    /// with the rules that it breaks ([`Error::violations`](jobqueue::Error::violations)), also if a newer
    /// release could read its version. Call this once for each message type. Payloads of other kinds are sent
    /// unchecked.
    ///
    /// If several types have a kind, the type of the job's queue is used, or else the first.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use jobqueue::{QueueMessage, Storage};
    /// use jobqueue_admin::{AccessLevel, Admin, RawSend};
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Serialize, Deserialize, QueueMessage)]
    /// #[message(queue = "mails", kind = "mail")]
    /// struct Mail {
    ///     #[message(non_empty)]
    ///     to: String,
    /// }
    ///
    /// let admin = Admin::builder(Storage::memory()).access(AccessLevel::Operate);
    /// let admin = admin.check_payloads_of::<Mail>().build();
    /// admin.create_queue("mails").await?;
    /// let refused = admin.send("mails", RawSend::json("mail", r#"{"to":""}"#)?).await.unwrap_err();
    /// let broken: Vec<_> = refused.violations().unwrap().iter().map(|broken| broken.path()).collect();
    /// assert_eq!(broken, ["to"]);
    /// # Ok(()) }
    /// ```
    pub fn check_payloads_of<M: QueueMessage>(mut self) -> Self {
        Arc::make_mut(&mut self.admin.checked).add::<M>();
        self
    }

    /// Returns the view.
    pub fn build(self) -> Admin {
        self.admin
    }
}
