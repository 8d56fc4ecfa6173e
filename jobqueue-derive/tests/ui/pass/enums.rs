use jobqueue::{QueueMessage, Validate};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "shapes", kind = "shape")]
enum Shape {
    Nothing,
    Circle(#[message(range(0.0..))] f64),
    Rectangle {
        #[message(range(1..))]
        width: u32,
        #[message(range(1..))]
        height: u32,
    },
    Named(#[message(key, non_empty)] String, u8),
    Group(#[message(nested)] Vec<Shape>),
}

#[derive(Validate)]
enum Unit {
    A,
    B,
}

#[derive(Validate)]
enum One {
    Only(#[message(nested)] Unit),
}

fn main() {
    let group = Shape::Group(vec![Shape::Nothing, Shape::Rectangle { width: 0, height: 0 }, Shape::Circle(-1.0)]);
    assert_eq!(group.validate().unwrap_err().len(), 3);
    assert_eq!(Shape::Named("a".into(), 1).key().unwrap(), "a");
    assert!(One::Only(Unit::A).validate().is_ok() && Unit::B.validate().is_ok());
}
