use jobqueue::{QueueMessage, Validate};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[serde(rename_all = "SCREAMING-KEBAB-CASE")]
#[message(queue = "things", kind = "thing")]
struct Thing {
    #[message(range(1..))]
    the_size: u8,
    #[serde(rename = "where", default, alias = "wo")]
    #[message(non_empty)]
    place: String,
}

fn main() {
    let violations = Thing { the_size: 0, place: String::new() }.validate().unwrap_err();
    let paths: Vec<_> = violations.iter().map(|violation| violation.path()).collect();
    assert_eq!(paths, ["THE-SIZE", "where"]);
}
