use jobqueue::{QueueMessage, Validate};
use serde::{Deserialize, Serialize};

macro_rules! message {
    ($name:ident, $queue:literal, $kind:literal, $version:literal, $ty:ty, $low:expr, $high:literal, $pattern:literal) => {
        #[derive(Serialize, Deserialize, QueueMessage)]
        #[message(queue = $queue, kind = $kind, version = $version, upgrade_from = none)]
        struct $name {
            #[message(range($low..=$high))]
            number: $ty,
            #[message(range(..$high))]
            maybe: Option<$ty>,
            #[message(pattern = $pattern, length(..=$high))]
            text: String,
        }
    };
}
message!(Small, "small", "small", 2, u8, 1 + 1, 200, "^a");
message!(Signed, "signed", "signed", 3, i64, -5, 200, "^b");

macro_rules! ranged {
    ($name:ident, $range:expr, $rule:path, $inner:ty) => {
        #[derive(Validate)]
        struct $name {
            #[message(range($range), with = $rule)]
            number: f32,
            #[message(nested)]
            inner: $inner,
        }
    };
}
ranged!(Float, -0.5..=1.5, finite, Vec<Small>);

fn finite(n: &f32) -> Result<(), &'static str> {
    if n.is_finite() { Ok(()) } else { Err("must be finite") }
}

#[test]
fn compiles_and_checks() {
    assert!(Small { number: 1, maybe: None, text: "a".into() }.validate().is_err());
    assert!(Small { number: 2, maybe: Some(199), text: "a".into() }.validate().is_ok());
    assert!(Signed { number: -6, maybe: None, text: "b".into() }.validate().is_err());
    assert!(Float { number: 1.6, inner: vec![] }.validate().is_err());
}
