#![forbid(unused_variables)]

use jobqueue::{QueueMessage, Validate};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "things", kind = "thing")]
struct Thing {
    plain: u8,
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "things", kind = "choice")]
enum Choice {
    Checked(#[message(range(1..))] u8),
    Plain(u8),
}

mod strict {
    #![forbid(non_upper_case_globals)]

    #[derive(jobqueue::Validate)]
    pub struct Part {
        #[message(range(1..))]
        pub number: u8,
    }
}

#[test]
fn compiles_and_checks() {
    assert!(Thing { plain: 0 }.validate().is_ok());
    assert!(Choice::Plain(0).validate().is_ok() && Choice::Checked(0).validate().is_err());
    assert!(strict::Part { number: 0 }.validate().is_err());
}
