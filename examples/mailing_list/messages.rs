//! The four messages, one for each queue. Leases are short: when a process dies, another continues soon.

use jobqueue::QueueMessage;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Find due mailings. Sent by the schedule, and so by one process only.
#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "mailing-scans", kind = "mailing.scan")]
pub(crate) struct Scan {}

/// Create one job for each recipient.
#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "mailing-fanouts", kind = "mailing.fanout", lease = "3s", poison_threshold = 3)]
#[message(backoff(base = "1s", max = "1m"))]
pub(crate) struct FanOut {
    #[message(key)]
    pub(crate) mailing: Uuid,
}

/// Send one mail. It names the recipient by number: the address stays in the database.
#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "mailing-mails", kind = "mailing.mail", lease = "3s")]
#[message(backoff(base = "1s", max = "1m"))]
pub(crate) struct Mail {
    #[message(key)]
    pub(crate) mailing: Uuid,
    pub(crate) recipient: u32,
}

/// All mails of a mailing are sent or given up.
#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "mailing-archives", kind = "mailing.archive", lease = "3s")]
pub(crate) struct Archive {
    #[message(key)]
    pub(crate) mailing: Uuid,
}
