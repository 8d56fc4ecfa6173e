#![allow(non_camel_case_types)]
use jobqueue::{QueueMessage, Validate};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "things", kind = "thing")]
struct r#struct {
    #[message(key, range(1..))]
    r#type: u8,
}

#[derive(Validate)]
enum r#enum {
    r#in {
        #[message(range(1..))]
        r#match: u8,
    },
}

#[test]
fn compiles_and_checks() {
    assert_eq!(r#struct { r#type: 0 }.validate().unwrap_err().to_string(), "type: must be at least 1");
    assert_eq!(
        r#enum::r#in { r#match: 0 }.validate().unwrap_err().to_string(),
        "in.match: must be at least 1"
    );
}
