use jobqueue::{QueueMessage, Validate};
use serde::{Deserialize, Serialize};

trait Shape {
    type Corner;
}

#[derive(Serialize, Deserialize)]
struct Square;

impl Shape for Square {
    type Corner = Corner;
}

#[derive(Serialize, Deserialize, Validate)]
struct Corner {
    #[message(range(0..))]
    x: i32,
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[serde(bound(serialize = "S::Corner: Serialize", deserialize = "S::Corner: Deserialize<'de>"))]
#[message(queue = "shapes", kind = "shape")]
struct Drawing<S>
where
    S: Shape + 'static,
{
    #[message(nested)]
    corners: Vec<S::Corner>,
}

#[test]
fn compiles_and_checks() {
    let drawing = Drawing::<Square> { corners: vec![Corner { x: -1 }] };
    assert_eq!(drawing.validate().unwrap_err().to_string(), "corners[0].x: must be at least 0");
    fn message<M: QueueMessage>(_: &M) {}
    message(&drawing);
}
