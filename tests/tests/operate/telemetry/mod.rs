//! Telemetry as others see it: a receiver in Python, and programs in Python before and after ours.

mod example;
mod otlp;
mod python_neighbours;

use jobqueue::QueueMessage;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "orders", kind = "order")]
struct Order {
    number: u32,
    #[serde(default)]
    secret: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "invoices", kind = "invoice")]
struct Invoice {
    order: u32,
}
