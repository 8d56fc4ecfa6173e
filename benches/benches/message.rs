//! Encode and validate, decode and validate, against bare serde_json of the same envelope and payload.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use jobqueue::QueueMessage;
use jobqueue::codec::{decode_message, encode_message};
use serde::{Deserialize, Serialize};

/// The smallest envelope that carries what ours does.
#[derive(Serialize, Deserialize)]
struct Event<'a, T> {
    specversion: &'a str,
    id: &'a str,
    source: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    time: &'a str,
    datacontenttype: &'a str,
    schemaversion: u32,
    traceparent: &'a str,
    data: T,
}
