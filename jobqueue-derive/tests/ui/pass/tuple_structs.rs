use jobqueue::{QueueMessage, Validate};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "things", kind = "pair")]
struct Pair(#[message(key)] String, #[message(range(1..=9))] u8);

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "things", kind = "unit")]
struct Unit;

#[derive(Validate, Serialize)]
#[serde(transparent)]
struct Transparent(#[message(range(1..))] u8);

#[derive(Validate)]
struct Holder {
    #[message(nested)]
    inner: Transparent,
}

#[test]
fn compiles_and_checks() {
    let pair = Pair("a".into(), 10);
    assert_eq!(pair.validate().unwrap_err().to_string(), "[1]: must be from 1 to 9");
    assert_eq!(pair.key().unwrap(), "a");
    assert!(Unit.validate().is_ok());
    let holder = Holder { inner: Transparent(0) };
    assert_eq!(holder.validate().unwrap_err().to_string(), "inner: must be at least 1");
}
