//! The sends that can be part of a transaction of the application.

use super::request::One;
use crate::message::QueueMessage;
use crate::queue_core::Queue;

mod sealed {
    pub trait Target {}
}

/// A send that can be part of a transaction of the application: that of [one message](One).
#[diagnostic::on_unimplemented(
    message = "only the send of one message, without `unique_for`, can be part of a transaction",
    label = "this send cannot be part of a transaction",
    note = "instead of `unique_for`, insert a row with a unique key into a table of yours in the same transaction, and send if that succeeds",
    note = "send the messages of a list one after the other, each with the same transaction"
)]
pub trait TransactionSend: sealed::Target {
    /// The type of the message.
    type Message: QueueMessage;

    #[doc(hidden)]
    fn queue(&self) -> &Queue<Self::Message>;

    #[doc(hidden)]
    fn message(&self) -> &Self::Message;
}

impl<M: QueueMessage> sealed::Target for One<'_, M> {}

impl<M: QueueMessage> TransactionSend for One<'_, M> {
    type Message = M;

    fn queue(&self) -> &Queue<M> {
        self.queue
    }

    fn message(&self) -> &M {
        self.message
    }
}
