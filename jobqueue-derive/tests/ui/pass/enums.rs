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

#[derive(Validate)]
struct Email(#[message(length(..3))] String);

#[derive(Validate)]
struct Radius {
    #[message(range(0.0..))]
    radius: f64,
}

#[derive(Validate)]
enum Round {
    Disc(#[message(nested)] Radius),
}

#[derive(Validate)]
struct Drawing {
    #[message(nested)]
    to: Email,
    #[message(nested)]
    round: Round,
}

#[test]
fn compiles_and_checks() {
    let group =
        Shape::Group(vec![Shape::Nothing, Shape::Rectangle { width: 0, height: 0 }, Shape::Circle(-1.0)]);
    assert_eq!(group.validate().unwrap_err().len(), 3);
    // A newtype has no place of its own on the wire.
    assert!(Shape::Circle(-1.0).validate().unwrap_err().to_string().starts_with("Circle: "));
    let drawing = Drawing { to: Email("nobody".into()), round: Round::Disc(Radius { radius: -1.0 }) };
    let paths: Vec<String> =
        drawing.validate().unwrap_err().iter().map(|found| found.path().to_string()).collect();
    assert_eq!(paths, ["to", "round.Disc.radius"]);
    assert_eq!(Shape::Named("a".into(), 1).key().unwrap(), "a");
    assert!(One::Only(Unit::A).validate().is_ok() && Unit::B.validate().is_ok());
}
