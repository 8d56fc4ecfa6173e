//! The attributes that spans and metrics have in common.

use std::sync::Arc;

use jobqueue::QueueName;
use opentelemetry::KeyValue;

use crate::conventions as names;

pub(crate) fn destination(queue: &QueueName) -> KeyValue {
    KeyValue::new(names::DESTINATION, Arc::<str>::from(queue))
}

pub(crate) fn error_type(code: &'static str) -> KeyValue {
    KeyValue::new(names::ERROR_TYPE, code)
}

pub(crate) fn outcome_of(name: &'static str) -> KeyValue {
    KeyValue::new(names::OUTCOME, name)
}
