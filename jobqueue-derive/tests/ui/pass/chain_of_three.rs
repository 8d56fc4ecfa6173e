use jobqueue::QueueMessage;
use serde::{Deserialize, Serialize};

use jobqueue::codec::decode_message;

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "things", kind = "thing")]
struct V1 {
    a: u8,
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "things", kind = "thing", version = 2, upgrade_from = V1)]
struct V2 {
    b: u8,
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "things", kind = "thing", version = 3, upgrade_from = V2)]
struct V3 {
    c: u8,
}

impl From<V1> for V2 {
    fn from(old: V1) -> Self {
        Self { b: old.a }
    }
}

impl TryFrom<V2> for V3 {
    type Error = String;
    fn try_from(old: V2) -> Result<Self, String> {
        old.b.checked_add(1).map(|c| Self { c }).ok_or_else(|| "too large".to_owned())
    }
}

#[test]
fn compiles_and_checks() {
    assert_eq!(decode_message::<V3>(1, br#"{"a":1}"#).unwrap().c, 2);
    assert!(decode_message::<V3>(1, br#"{"a":255}"#).is_err());
}
