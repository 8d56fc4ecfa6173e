//! A call to the service: its operation, its subject, and its possible effect.

use std::fmt::Display;

use azure_core::http::{ClientMethodOptions, Context};

use super::pipeline::{AnswerLimit, Receipt};
use jobqueue_storage::{PopReceipt, StoreError, StoreErrorKind};

/// The effect that a call may have had if its answer is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Reads,
    /// The call may have been applied; repeating it is harmless.
    Repeatable,
    /// The call may have been applied, and repeating it may have another effect.
    Once,
}

/// A call: its operation and its subject.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) operation: &'static str,
    pub(super) subject: &'a (dyn Display + Sync),
    pub(super) effect: Effect,
    /// The maximum size of the content that the call carries, in either direction, in bytes.
    pub(super) content: Option<u64>,
}

impl<'a> Call<'a> {
    fn new(effect: Effect, operation: &'static str, subject: &'a (dyn Display + Sync)) -> Self {
        Self { operation, subject, effect, content: None }
    }

    pub(super) fn reads(operation: &'static str, subject: &'a (dyn Display + Sync)) -> Self {
        Self::new(Effect::Reads, operation, subject)
    }

    pub(super) fn repeatable(operation: &'static str, subject: &'a (dyn Display + Sync)) -> Self {
        Self::new(Effect::Repeatable, operation, subject)
    }

    pub(super) fn once(operation: &'static str, subject: &'a (dyn Display + Sync)) -> Self {
        Self::new(Effect::Once, operation, subject)
    }

    pub(super) fn with_content(self, bytes: u64) -> Self {
        Self { content: Some(bytes), ..self }
    }

    pub(super) fn error(self, kind: StoreErrorKind) -> StoreError {
        StoreError::new(kind, self.operation, self.subject)
    }

    /// Returns the error for an argument that was refused before anything was sent.
    pub(super) fn refuse(self, detail: impl Into<String>) -> StoreError {
        self.error(StoreErrorKind::InvalidInput).with_detail(detail)
    }

    /// Returns the error for an answer that was received but not understood.
    pub(super) fn unreadable(self, detail: impl Into<String>) -> StoreError {
        self.error(StoreErrorKind::Protocol).with_detail(detail).with_ambiguous(self.changes())
    }

    pub(super) fn changes(self) -> bool {
        self.effect != Effect::Reads
    }
}

/// Returns options for a call with a receipt, which the request must not contain before the SDK has logged
/// it.
pub(super) fn with_receipt(receipt: &PopReceipt) -> ClientMethodOptions<'static> {
    ClientMethodOptions { context: Context::new().with_value(Receipt(receipt.clone())) }
}

/// Returns options for a call whose answer may have up to `bytes` bytes.
pub(super) fn with_limit(bytes: u64) -> ClientMethodOptions<'static> {
    ClientMethodOptions { context: limited(bytes) }
}

/// Returns the context for a call whose answer may have up to `bytes` bytes.
pub(super) fn limited(bytes: u64) -> Context<'static> {
    Context::new().with_value(AnswerLimit(bytes))
}
