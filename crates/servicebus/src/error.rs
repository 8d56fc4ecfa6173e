//! Maps failures of the service and of connections to errors of the port.

use std::fmt;
use std::sync::Arc;

use jobqueue_storage::{StoreError, StoreErrorKind as Kind};

#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum Fault {
    /// The service refused the request, and gave a reason.
    #[error("the service refused: {condition}: {description}")]
    Refused { condition: String, description: String },
    /// The request was certainly not sent.
    #[error("the service cannot be reached: {0}")]
    NotSent(String),
    /// The link or the connection ended before the answer arrived.
    #[error("the connection ended before the answer: {0}")]
    Lost(String),
    #[error("no answer came in time")]
    Late,
    #[error("unexpected answer: {0}")]
    Unreadable(String),
    /// The answer may come from a gateway in between: it does not have the service's form, or another answer
    /// contradicts it.
    #[error("an answer that may not come from the service: {0}")]
    Doubtful(String),
    /// The blobs of the queue could not be read.
    #[error(transparent)]
    Blobs(Arc<StoreError>),
}

/// Error conditions of the service and of AMQP that this crate distinguishes, and its own names for answers
/// without a condition.
pub(super) mod condition {
    pub(crate) const MESSAGE_LOCK_LOST: &str = "com.microsoft:message-lock-lost";
    pub(crate) const SESSION_LOCK_LOST: &str = "com.microsoft:session-lock-lost";
    pub(super) const NO_MESSAGE: &str = "com.microsoft:message-not-found";
    pub(super) const NO_ENTITY: &str = "com.microsoft:entity-not-found";
    pub(super) const ENTITY_DISABLED: &str = "com.microsoft:entity-disabled";
    pub(super) const SERVER_BUSY: &str = "com.microsoft:server-busy";
    /// The answer to an attach for the next free session, if there is none.
    pub(super) const TIMEOUT: &str = "com.microsoft:timeout";
    pub(super) const CANCELLED: &str = "com.microsoft:operation-cancelled";
    pub(super) const AUTH_FAILED: &str = "com.microsoft:auth-failed";
    pub(super) const SERVICE_FULL: &str = "com.microsoft:resource-limit-exceeded";
    pub(super) const ARGUMENT: &str = "com.microsoft:argument-error";
    pub(super) const ARGUMENT_OUT_OF_RANGE: &str = "com.microsoft:argument-out-of-range";

    pub(super) const NOT_FOUND: &str = "amqp:not-found";
    pub(super) const UNAUTHORIZED: &str = "amqp:unauthorized-access";
    pub(super) const NOT_ALLOWED: &str = "amqp:not-allowed";
    pub(super) const NOT_IMPLEMENTED: &str = "amqp:not-implemented";
    pub(super) const INVALID_FIELD: &str = "amqp:invalid-field";
    pub(super) const DECODE_ERROR: &str = "amqp:decode-error";
    pub(super) const PRECONDITION_FAILED: &str = "amqp:precondition-failed";
    pub(super) const FULL: &str = "amqp:resource-limit-exceeded";
    pub(crate) const TOO_LARGE: &str = "amqp:link:message-size-exceeded";
    pub(crate) const INTERNAL_ERROR: &str = "amqp:internal-error";
    /// The prefix of the conditions of a transaction that was rolled back.
    pub(super) const ROLLED_BACK: &str = "amqp:transaction:";

    /// The status 409: another operation on the queue is in progress, such as its creation or deletion.
    pub(super) const CONFLICT: &str = "com.microsoft:conflict";
    /// The management API, which has its own limits, is too busy.
    pub(crate) const MANAGEMENT_BUSY: &str = "jobqueue:management-busy";
    /// The tier, or this queue, does not support transactions.
    pub(super) const NO_TRANSACTIONS: &str = "jobqueue:no-transactions";
    /// A message was refused in a transaction, and the reason cannot be read.
    pub(crate) const REFUSED_IN_TRANSACTION: &str = "jobqueue:refused-in-transaction";
    /// A transaction was rolled back at its commit.
    pub(super) const ROLLED_BACK_AT_COMMIT: &str = "jobqueue:rolled-back-at-commit";
}

impl Fault {
    pub(super) fn not_sent(reason: impl fmt::Display) -> Self {
        Self::NotSent(reason.to_string())
    }

    pub(super) fn lost(reason: impl fmt::Display) -> Self {
        Self::Lost(reason.to_string())
    }

    pub(super) fn unreadable(reason: impl fmt::Display) -> Self {
        Self::Unreadable(reason.to_string())
    }

    /// Returns the fault of an operation that was not started because a limit is reached.
    pub(super) fn full(reason: impl fmt::Display) -> Self {
        Self::Refused { condition: condition::FULL.to_owned(), description: reason.to_string() }
    }

    pub(super) fn missing_queue() -> Self {
        let description = "there is no such queue".to_owned();
        Self::Refused { condition: condition::NO_ENTITY.to_owned(), description }
    }

    /// Returns the fault of an operation that the service does not support here.
    pub(super) fn unsupported(reason: impl fmt::Display) -> Self {
        Self::Refused { condition: condition::NOT_IMPLEMENTED.to_owned(), description: reason.to_string() }
    }

    /// Maps the status and the condition of an answer to a management request to a fault.
    pub(super) fn of_answer(status: i32, condition: Option<String>, description: String) -> Self {
        let condition = condition.unwrap_or_else(|| {
            let known = match status {
                401 | 403 => condition::UNAUTHORIZED,
                404 => condition::NO_MESSAGE,
                408 => condition::TIMEOUT,
                409 => condition::CONFLICT,
                410 => condition::MESSAGE_LOCK_LOST,
                429 | 503 => condition::SERVER_BUSY,
                500..=599 => condition::INTERNAL_ERROR,
                _ => condition::ARGUMENT,
            };
            known.to_owned()
        });
        Self::Refused { condition, description }
    }

    pub(super) fn is_lock_lost(&self) -> bool {
        self.is_of_kind(Kind::LeaseExpired)
    }

    pub(super) fn is_missing_entity(&self) -> bool {
        self.is_of_kind(Kind::QueueNotFound)
    }

    pub(super) fn is_missing_message(&self) -> bool {
        matches!(self, Self::Refused { condition, .. } if condition == condition::NO_MESSAGE)
    }

    pub(super) fn is_unauthorized(&self) -> bool {
        self.is_of_kind(Kind::Unauthorized)
    }

    /// Returns whether the service never supports this operation here. Unlike throttling, missing rights or a
    /// timeout, that does not pass.
    pub(super) fn is_unsupported(&self) -> bool {
        let never = [condition::NOT_IMPLEMENTED, condition::NOT_ALLOWED];
        matches!(self, Self::Refused { condition, .. } if never.contains(&condition.as_str()))
    }

    /// Returns the fault of the link to a coordinator, or of a request to it before a transaction has begun.
    pub(super) fn of_coordinator(self) -> Self {
        match self {
            Self::Refused { ref condition, ref description } if self.is_unsupported() => Self::Refused {
                condition: condition::NO_TRANSACTIONS.to_owned(),
                description: format!("{condition}: {description}"),
            },
            other => other,
        }
    }

    /// Returns whether the service does not support transactions here.
    pub(super) fn lacks_transactions(&self) -> bool {
        matches!(self, Self::Refused { condition, .. } if condition == condition::NO_TRANSACTIONS)
    }

    /// Returns whether to repeat the operation without a transaction: then it succeeds, or its refusal has a
    /// reason.
    pub(super) fn is_of_transaction(&self) -> bool {
        let refused = |condition: &str| {
            [condition::NO_TRANSACTIONS, condition::REFUSED_IN_TRANSACTION].contains(&condition)
        };
        let is_refused = matches!(self, Self::Refused { condition, .. } if refused(condition));
        self.is_unsupported() || is_refused
    }

    /// Returns whether a transaction was rolled back at its commit.
    pub(super) fn is_rolled_back(&self) -> bool {
        matches!(self, Self::Refused { condition, .. } if condition == condition::ROLLED_BACK_AT_COMMIT)
    }

    /// Returns the fault of a commit. A rollback has no reason: the queue may accept no sends, or the lock
    /// may be lost.
    pub(super) fn of_commit(self) -> Self {
        match &self {
            Self::Refused { condition, .. } if condition.starts_with(condition::ROLLED_BACK) => {
                Self::Refused {
                    condition: condition::ROLLED_BACK_AT_COMMIT.to_owned(),
                    description: self.to_string(),
                }
            }
            _ => self,
        }
    }

    /// Returns the fault of a refused token. That answer has a status and no condition, and "not found" means
    /// the queue.
    pub(super) fn of_token(self) -> Self {
        match self {
            Self::Refused { condition, description } if condition == condition::NO_MESSAGE => {
                Self::Refused { condition: condition::NOT_FOUND.to_owned(), description }
            }
            other => other,
        }
    }

    /// Returns the fault of a settlement: there, "not found" means that the lock is lost, not that the queue
    /// is missing.
    pub(super) fn of_settlement(self) -> Self {
        match self {
            Self::Refused { condition, description } if condition == condition::NOT_FOUND => {
                Self::Refused { condition: condition::MESSAGE_LOCK_LOST.to_owned(), description }
            }
            other => other,
        }
    }

    /// Returns whether the service found no free session in time.
    pub(super) fn is_no_session(&self) -> bool {
        matches!(self, Self::Refused { condition, .. } if condition == condition::TIMEOUT)
    }

    /// Returns whether the service refuses the operation because of the entity's settings.
    pub(super) fn is_not_allowed(&self) -> bool {
        matches!(self, Self::Refused { condition, .. } if condition == condition::NOT_ALLOWED)
    }

    /// Returns whether the service was too busy, and did nothing.
    pub(super) fn is_throttled(&self) -> bool {
        self.is_of_kind(Kind::Throttled)
    }

    /// Returns whether a limit is reached.
    pub(super) fn is_full(&self) -> bool {
        self.is_of_kind(Kind::Full)
    }

    /// Returns the fault of a step that by itself changes nothing: never ambiguous.
    pub(super) fn unsent(self) -> Self {
        if self.is_ambiguous() { Self::not_sent(self) } else { self }
    }

    fn is_of_kind(&self, kind: Kind) -> bool {
        matches!(self, Self::Refused { condition, .. } if kind_of(condition) == kind)
    }

    fn kind(&self) -> Kind {
        match self {
            Self::Refused { condition, .. } => kind_of(condition),
            Self::NotSent(_) | Self::Lost(_) | Self::Doubtful(_) => Kind::Unavailable,
            Self::Late => Kind::Timeout,
            Self::Unreadable(_) => Kind::Protocol,
            Self::Blobs(error) => error.kind(),
        }
    }

    /// Returns whether the request may have been applied in spite of the fault.
    fn is_ambiguous(&self) -> bool {
        match self {
            Self::Refused { .. } => matches!(self.kind(), Kind::Timeout | Kind::Unavailable),
            Self::NotSent(_) | Self::Blobs(_) => false,
            Self::Lost(_) | Self::Late | Self::Unreadable(_) | Self::Doubtful(_) => true,
        }
    }

    /// Returns the error of a read: never ambiguous.
    pub(super) fn of_read(self, operation: &'static str, subject: impl fmt::Display) -> StoreError {
        let kind = self.kind();
        // A busy management API or blob storage does not mean that the queue is busy.
        let is_of_part = match &self {
            Self::Refused { condition, .. } => condition == condition::MANAGEMENT_BUSY,
            other => matches!(other, Self::Blobs(_)),
        };
        StoreError::new(kind, operation, subject).with_of_part(is_of_part).with_source(self)
    }

    /// Returns the error of a change: ambiguous unless the service refused the request or it was not sent.
    pub(super) fn of_change(self, operation: &'static str, subject: impl fmt::Display) -> StoreError {
        let ambiguous = self.is_ambiguous();
        self.of_read(operation, subject).with_ambiguous(ambiguous)
    }
}

/// Returns the kind of a condition. An unknown condition is `Unavailable`: the request is retried, and may
/// have been applied.
fn kind_of(condition: &str) -> Kind {
    match condition {
        condition::NOT_FOUND | condition::NO_ENTITY => Kind::QueueNotFound,
        condition::MESSAGE_LOCK_LOST | condition::SESSION_LOCK_LOST => Kind::LeaseExpired,
        condition::NO_MESSAGE => Kind::MessageNotFound,
        condition::CONFLICT => Kind::QueueBeingDeleted,
        condition::ENTITY_DISABLED => Kind::QueueDisabled,
        condition::SERVER_BUSY | condition::MANAGEMENT_BUSY => Kind::Throttled,
        condition::TIMEOUT | condition::CANCELLED => Kind::Timeout,
        condition::UNAUTHORIZED | condition::AUTH_FAILED => Kind::Unauthorized,
        condition::TOO_LARGE => Kind::TooLarge,
        condition::FULL | condition::SERVICE_FULL => Kind::Full,
        condition::NOT_ALLOWED
        | condition::INVALID_FIELD
        | condition::DECODE_ERROR
        | condition::PRECONDITION_FAILED
        | condition::ARGUMENT
        | condition::ARGUMENT_OUT_OF_RANGE => Kind::InvalidInput,
        condition::NOT_IMPLEMENTED
        | condition::NO_TRANSACTIONS
        | condition::REFUSED_IN_TRANSACTION
        | condition::ROLLED_BACK_AT_COMMIT => Kind::Unsupported,
        _ => Kind::Unavailable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(condition: &str) -> StoreError {
        let fault = Fault::Refused { condition: condition.to_owned(), description: "why".to_owned() };
        fault.of_change("put message", "jobs")
    }

    #[test]
    fn settlement_that_finds_nothing_has_lost_its_lock() {
        let fault = Fault::Refused { condition: "amqp:not-found".to_owned(), description: "why".to_owned() };
        assert!(fault.clone().is_missing_entity());
        let settling = fault.of_settlement();
        assert!(settling.is_lock_lost() && !settling.is_missing_entity(), "{settling}");
        assert!(Fault::Late.of_settlement().of_change("delete message", "jobs").is_ambiguous());
    }

    #[test]
    fn queue_is_missing_that_a_token_was_refused_for() {
        let of_token = |status, condition| Fault::of_answer(status, condition, "why".to_owned()).of_token();
        assert!(of_token(404, None).is_missing_entity());
        assert!(of_token(404, Some("amqp:not-found".to_owned())).is_missing_entity());
        assert!(of_token(401, None).is_unauthorized());
        assert!(Fault::of_answer(404, None, "why".to_owned()).is_missing_message());
    }

    #[test]
    fn refusals_are_certain_and_lost_answers_are_not() {
        assert_eq!(refused("com.microsoft:server-busy").kind(), Kind::Throttled);
        assert!(!refused("com.microsoft:server-busy").is_ambiguous());
        for busy in ["com.microsoft:server-busy", condition::MANAGEMENT_BUSY] {
            // The callers' pauses grow, and their jitter spreads them.
            assert_eq!(refused(busy).retry_after(), None, "{busy}");
            assert_eq!(refused(busy).kind(), Kind::Throttled, "{busy}");
        }
        assert!(!refused("com.microsoft:argument-out-of-range").is_ambiguous());
        assert!(refused("com.microsoft:message-lock-lost").is_lease_lost());
        assert!(refused("com.microsoft:timeout").is_ambiguous());
        assert!(refused("amqp:internal-error").is_ambiguous());
        assert!(Fault::Late.of_change("put message", "jobs").is_ambiguous());
        assert!(!Fault::not_sent("x").of_change("put message", "jobs").is_ambiguous());
    }
}
