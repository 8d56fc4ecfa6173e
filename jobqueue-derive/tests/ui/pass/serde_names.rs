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

#[derive(Serialize, Deserialize, Validate)]
struct Pair(#[serde(skip)] u8, #[message(range(1..))] u8, #[message(range(1..))] u8);

#[derive(Serialize, Deserialize, Validate)]
enum Shape {
    Circle {
        #[message(range(1..))]
        radius: u8,
    },
    #[serde(untagged)]
    Bare {
        #[message(range(1..))]
        side: u8,
    },
}

#[derive(Serialize, Deserialize, Validate)]
#[serde(rename_all = "kebab-case")]
#[allow(non_camel_case_types)]
enum Model {
    V1_2 {
        #[message(range(1..))]
        year: u8,
    },
}

fn paths(value: &impl Validate) -> Vec<String> {
    value.validate().unwrap_err().iter().map(|violation| violation.path().to_owned()).collect()
}

#[test]
fn compiles_and_checks() {
    assert_eq!(paths(&Thing { the_size: 0, place: String::new() }), ["THE-SIZE", "where"]);
    // serde writes `[0, 0]` and `{"side":0}`.
    assert_eq!(paths(&Pair(1, 0, 0)), ["[0]", "[1]"]);
    assert_eq!(paths(&Shape::Circle { radius: 0 }), ["Circle.radius"]);
    assert_eq!(paths(&Shape::Bare { side: 0 }), ["side"]);
    assert_eq!(paths(&Model::V1_2 { year: 0 }), ["v1-2.year"]);
}
