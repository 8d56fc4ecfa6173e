//! The messages of the releases.

use jobqueue::QueueMessage;
use serde::{Deserialize, Serialize};

/// The message of the first release.
#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "orders", kind = "order", poison_threshold = 3)]
pub struct OrderV1 {
    #[message(key, non_empty)]
    pub id: String,
}

/// The message of the second release.
#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "orders", kind = "order", version = 2, upgrade_from = OrderV1, poison_threshold = 3)]
pub struct OrderV2 {
    #[message(key, non_empty)]
    pub id: String,
    pub express: bool,
}

impl From<OrderV1> for OrderV2 {
    fn from(old: OrderV1) -> Self {
        Self { id: old.id, express: false }
    }
}

/// A kind that only the second release knows.
#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "orders", kind = "refund", poison_threshold = 3)]
pub struct Refund {
    #[message(key, non_empty)]
    pub id: String,
}
