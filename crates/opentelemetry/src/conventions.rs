//! The names from OpenTelemetry's semantic conventions for messaging, and the names that this crate adds.
//!
//! The conventions have version 1.44.0. In it, the messaging conventions are still in development: their
//! names may change, and then change here. `tests/opentelemetry/conventions.rs` compares the names with the
//! model of the conventions.

/// The URL of the schema of this version.
pub(crate) const SCHEMA: &str = "https://opentelemetry.io/schemas/1.44.0";

pub(crate) const SYSTEM: &str = "messaging.system";
pub(crate) const DESTINATION: &str = "messaging.destination.name";
pub(crate) const OPERATION_NAME: &str = "messaging.operation.name";
pub(crate) const OPERATION_TYPE: &str = "messaging.operation.type";
pub(crate) const MESSAGE_ID: &str = "messaging.message.id";
pub(crate) const MESSAGE_COUNT: &str = "messaging.batch.message_count";
pub(crate) const ERROR_TYPE: &str = "error.type";
pub(crate) const SERVER_ADDRESS: &str = "server.address";
pub(crate) const SERVER_PORT: &str = "server.port";

/// The system for queues on Azure Service Bus, as the conventions name it.
pub(crate) const SERVICE_BUS: &str = "servicebus";
/// The system for all other storages.
pub(crate) const JOBQUEUE: &str = "jobqueue";

/// The operations. Each operation's name is also its type.
pub(crate) const CREATE: &str = "create";
pub(crate) const SEND: &str = "send";
pub(crate) const RECEIVE: &str = "receive";
pub(crate) const PROCESS: &str = "process";
pub(crate) const SETTLE: &str = "settle";

pub(crate) const OPERATION_DURATION: &str = "messaging.client.operation.duration";
pub(crate) const SENT_MESSAGES: &str = "messaging.client.sent.messages";
pub(crate) const CONSUMED_MESSAGES: &str = "messaging.client.consumed.messages";
pub(crate) const PROCESS_DURATION: &str = "messaging.process.duration";

/// The bucket boundaries of durations, in seconds.
pub(crate) const DURATIONS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];
/// The bucket boundaries of waiting times, in seconds, up to a day.
pub(crate) const WAITS: &[f64] =
    &[0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0];

/// The attributes that this crate adds, because the conventions have none for these facts.
pub(crate) const KIND: &str = "jobqueue.job.kind";
pub(crate) const ATTEMPT: &str = "jobqueue.job.attempt";
pub(crate) const OUTCOME: &str = "jobqueue.outcome";
pub(crate) const REASON: &str = "jobqueue.reason";
pub(crate) const CAUSE: &str = "jobqueue.cause";
pub(crate) const STORAGE_NAME: &str = "jobqueue.storage.name";
pub(crate) const STORAGE_OPERATION: &str = "jobqueue.storage.operation";

pub(crate) const QUEUE_LENGTH: &str = "jobqueue.queue.length";
pub(crate) const QUEUE_WAITING: &str = "jobqueue.queue.waiting";
pub(crate) const QUEUE_DELAYED: &str = "jobqueue.queue.delayed";
pub(crate) const QUEUE_BACKING_OFF: &str = "jobqueue.queue.backing_off";
pub(crate) const QUEUE_OLDEST: &str = "jobqueue.queue.oldest_age";
pub(crate) const QUEUE_DEAD_LETTERS: &str = "jobqueue.queue.dead_letters";
pub(crate) const QUEUE_PAUSED: &str = "jobqueue.queue.paused";
pub(crate) const QUEUE_IN_FLIGHT: &str = "jobqueue.queue.in_flight";
pub(crate) const JOB_WAIT: &str = "jobqueue.job.wait";
pub(crate) const JOB_ATTEMPTS: &str = "jobqueue.job.attempts";
pub(crate) const JOB_DEAD_LETTERS: &str = "jobqueue.job.dead_letters";
pub(crate) const LEASE_LOST: &str = "jobqueue.lease.lost";
pub(crate) const LEASE_RENEWALS: &str = "jobqueue.lease.renewals";
pub(crate) const CIRCUIT_STATE: &str = "jobqueue.circuit.state";
pub(crate) const STORAGE_TRANSACTIONS: &str = "jobqueue.storage.transactions";
pub(crate) const STORAGE_THROTTLED: &str = "jobqueue.storage.throttled";

/// The value for texts that a sender could choose freely, because an attribute of a metric must have few
/// values.
pub(crate) const OTHER: &str = "_OTHER";
