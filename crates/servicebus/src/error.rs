//! Maps failures of the service and of connections to errors of the port.

use std::fmt;

use jobqueue_storage::{StoreError, StoreErrorKind as Kind};

#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum Fault {
    /// The service refused the request, and says why.
    #[error("the service refused: {condition}: {description}")]
    Refused { condition: String, description: String },
    /// The request was certainly not sent.
    #[error("the service cannot be reached: {0}")]
    NotSent(String),
    /// The link or the connection ended before the answer came.
    #[error("the connection ended before the answer: {0}")]
    Lost(String),
    #[error("no answer came in time")]
    Late,
    #[error("unexpected answer: {0}")]
    Unreadable(String),
    /// The answer may be that of a gateway on the way: it has not the service's form, or another answer contradicts it.
    #[error("an answer that need not be the service's: {0}")]
    Doubtful(String),
}

const LOCK_LOST: [&str; 2] = ["com.microsoft:message-lock-lost", "com.microsoft:session-lock-lost"];
/// The name here of the status 409: another operation on the queue is under way, its creation or deletion.
const CONFLICT: &str = "com.microsoft:conflict";
/// The name here of the answer that the management API is too busy. It has limits of its own.
pub(super) const MANAGEMENT_BUSY: &str = "jobqueue:management-busy";
/// The name here of the answer that the tier, or this queue, has no transactions.
const NO_TRANSACTIONS: &str = "jobqueue:no-transactions";
/// The beginning of the conditions of a transaction that was rolled back.
const ROLLED_BACK: &str = "amqp:transaction:";
const NO_MESSAGE: &str = "com.microsoft:message-not-found";
const NOT_FOUND: [&str; 2] = ["amqp:not-found", "com.microsoft:entity-not-found"];

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

    /// Returns the fault of something that was not begun, because there is no room for more of them.
    pub(super) fn full(reason: impl fmt::Display) -> Self {
        Self::Refused {
            condition: "amqp:resource-limit-exceeded".to_owned(),
            description: reason.to_string(),
        }
    }

    /// Returns a fault by the status and the condition of an answer to a management request.
    pub(super) fn of_answer(status: i32, condition: Option<String>, description: String) -> Self {
        let condition = condition.unwrap_or_else(|| {
            let known = match status {
                401 | 403 => "amqp:unauthorized-access",
                404 => NO_MESSAGE,
                408 => "com.microsoft:timeout",
                409 => CONFLICT,
                410 => LOCK_LOST[0],
                429 | 503 => "com.microsoft:server-busy",
                500..=599 => "amqp:internal-error",
                _ => "com.microsoft:argument-error",
            };
            known.to_owned()
        });
        Self::Refused { condition, description }
    }

    pub(super) fn is_lock_lost(&self) -> bool {
        matches!(self, Self::Refused { condition, .. } if LOCK_LOST.contains(&condition.as_str()))
    }

    pub(super) fn is_missing_entity(&self) -> bool {
        matches!(self, Self::Refused { condition, .. } if NOT_FOUND.contains(&condition.as_str()))
    }

    pub(super) fn is_missing_message(&self) -> bool {
        matches!(self, Self::Refused { condition, .. } if condition == NO_MESSAGE)
    }

    pub(super) fn is_unauthorized(&self) -> bool {
        matches!(self, Self::Refused { condition, .. } if kind_of(condition) == Kind::Unauthorized)
    }

    /// Returns whether the service says that it never does this here: unlike a throttled request, a lack of rights or a timeout,
    /// that does not pass.
    pub(super) fn is_unsupported(&self) -> bool {
        let never = ["amqp:not-implemented", "amqp:not-allowed"];
        matches!(self, Self::Refused { condition, .. } if never.contains(&condition.as_str()))
    }

    /// Returns the fault of a link to a coordinator, or of what it was asked for before a transaction has begun.
    pub(super) fn of_coordinator(self) -> Self {
        match self {
            Self::Refused { ref condition, ref description } if self.is_unsupported() => Self::Refused {
                condition: NO_TRANSACTIONS.to_owned(),
                description: format!("{condition}: {description}"),
            },
            other => other,
        }
    }

    /// Returns whether the service has no transactions here.
    pub(super) fn lacks_transactions(&self) -> bool {
        matches!(self, Self::Refused { condition, .. } if condition == NO_TRANSACTIONS)
    }

    /// Returns the fault of a commit: what is certainly not done was rolled back with the rest.
    pub(super) fn of_commit(self) -> Self {
        match &self {
            Self::Refused { condition, .. } if condition.starts_with(ROLLED_BACK) || !self.is_ambiguous() => {
                Self::not_sent(self)
            }
            _ => self,
        }
    }

    /// Returns the fault of a token that was refused. The answer has a status and no condition, and what is not found is the queue.
    pub(super) fn of_token(self) -> Self {
        match self {
            Self::Refused { condition, description } if condition == NO_MESSAGE => {
                Self::Refused { condition: NOT_FOUND[0].to_owned(), description }
            }
            other => other,
        }
    }

    /// Returns the fault of a settlement: there, "not found" means that the lock is lost, not that the queue is missing.
    pub(super) fn of_settlement(self) -> Self {
        match self {
            Self::Refused { condition, description } if condition == NOT_FOUND[0] => {
                Self::Refused { condition: LOCK_LOST[0].to_owned(), description }
            }
            other => other,
        }
    }

    /// Returns whether the service's wait for a free session has expired.
    pub(super) fn is_no_session(&self) -> bool {
        matches!(self, Self::Refused { condition, .. } if condition == "com.microsoft:timeout")
    }

    /// Returns whether the service says that this cannot be done with the entity as it is.
    pub(super) fn is_not_allowed(&self) -> bool {
        matches!(self, Self::Refused { condition, .. } if condition == "amqp:not-allowed")
    }

    /// Returns whether the service was too busy, and has done nothing.
    pub(super) fn is_throttled(&self) -> bool {
        matches!(self, Self::Refused { condition, .. } if kind_of(condition) == Kind::Throttled)
    }

    /// Returns whether there is no room for more of them.
    pub(super) fn is_full(&self) -> bool {
        matches!(self, Self::Refused { condition, .. } if kind_of(condition) == Kind::Full)
    }

    /// Returns the fault of a step that changes nothing by itself, however it ended.
    pub(super) fn unsent(self) -> Self {
        if self.is_ambiguous() { Self::not_sent(self) } else { self }
    }

    fn kind(&self) -> Kind {
        match self {
            Self::Refused { condition, .. } => kind_of(condition),
            Self::NotSent(_) | Self::Lost(_) | Self::Doubtful(_) => Kind::Unavailable,
            Self::Late => Kind::Timeout,
            Self::Unreadable(_) => Kind::Protocol,
        }
    }

    /// Returns whether the request may have been applied nevertheless.
    fn is_ambiguous(&self) -> bool {
        match self {
            Self::Refused { .. } => matches!(self.kind(), Kind::Timeout | Kind::Unavailable),
            Self::NotSent(_) => false,
            Self::Lost(_) | Self::Late | Self::Unreadable(_) | Self::Doubtful(_) => true,
        }
    }

    /// Returns the error of a read: never ambiguous.
    pub(super) fn of_read(self, operation: &'static str, subject: impl fmt::Display) -> StoreError {
        let kind = self.kind();
        // A busy management API says nothing of messages.
        let is_of_part = matches!(&self, Self::Refused { condition, .. } if condition == MANAGEMENT_BUSY);
        StoreError::new(kind, operation, subject).with_of_part(is_of_part).with_source(self)
    }

    /// Returns the error of a change: ambiguous unless the service refused it or it was not sent.
    pub(super) fn of_change(self, operation: &'static str, subject: impl fmt::Display) -> StoreError {
        let ambiguous = self.is_ambiguous();
        self.of_read(operation, subject).with_ambiguous(ambiguous)
    }
}

fn kind_of(condition: &str) -> Kind {
    match condition {
        _ if NOT_FOUND.contains(&condition) => Kind::QueueNotFound,
        _ if LOCK_LOST.contains(&condition) => Kind::LeaseExpired,
        NO_MESSAGE => Kind::MessageNotFound,
        CONFLICT => Kind::QueueBeingDeleted,
        "com.microsoft:entity-disabled" => Kind::QueueDisabled,
        "com.microsoft:server-busy" | MANAGEMENT_BUSY => Kind::Throttled,
        "com.microsoft:timeout" | "com.microsoft:operation-cancelled" => Kind::Timeout,
        "amqp:unauthorized-access" | "com.microsoft:auth-failed" => Kind::Unauthorized,
        "amqp:link:message-size-exceeded" => Kind::TooLarge,
        "amqp:resource-limit-exceeded" | "com.microsoft:resource-limit-exceeded" => Kind::Full,
        "amqp:not-allowed"
        | "amqp:invalid-field"
        | "amqp:decode-error"
        | "amqp:precondition-failed"
        | "com.microsoft:argument-error"
        | "com.microsoft:argument-out-of-range" => Kind::InvalidInput,
        "amqp:not-implemented" | NO_TRANSACTIONS => Kind::Unsupported,
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
    fn a_settlement_that_finds_nothing_has_lost_its_lock() {
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
        for busy in ["com.microsoft:server-busy", MANAGEMENT_BUSY] {
            // The callers' own pauses grow, and their jitter parts them.
            assert_eq!(
                (refused(busy).kind(), refused(busy).retry_after()),
                (Kind::Throttled, None),
                "{busy}"
            );
        }
        assert!(!refused("com.microsoft:argument-out-of-range").is_ambiguous());
        assert!(refused("com.microsoft:message-lock-lost").is_lease_lost());
        assert!(refused("com.microsoft:timeout").is_ambiguous());
        assert!(refused("amqp:internal-error").is_ambiguous());
        assert!(Fault::Late.of_change("put message", "jobs").is_ambiguous());
        assert!(!Fault::not_sent("x").of_change("put message", "jobs").is_ambiguous());
    }
}
