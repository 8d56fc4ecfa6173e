//! Telemetry as others see it: a receiver in Python, programs in Python before and after ours, and whoever reads a log at its finest
//! level.

#![allow(clippy::unwrap_used)]

mod example;
mod otlp;
mod python_neighbours;
mod secrets;

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
