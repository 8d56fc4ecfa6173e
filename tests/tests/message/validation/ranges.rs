//! The ends of ranges.

use jobqueue::Validate;

use super::{broken, only};

#[derive(Validate)]
pub(super) struct Ranges {
    #[message(range(1..=64))]
    pub(super) closed: u32,
    #[message(range(-5..5))]
    pub(super) open: i8,
    #[message(range(10..))]
    pub(super) from: u64,
    #[message(range(..=-1))]
    pub(super) up_to: i128,
    #[message(range(..3))]
    pub(super) below: usize,
    #[message(range(-1.5..=1))]
    pub(super) float: f32,
}

pub(super) fn ranges() -> Ranges {
    Ranges { closed: 1, open: -5, from: 10, up_to: -1, below: 2, float: 1.0 }
}

#[test]
fn a_range_begins_and_ends_where_it_says() {
    assert!(ranges().validate().is_ok());
    let high = Ranges { closed: 64, open: 4, from: u64::MAX, up_to: i128::MIN, below: 0, float: -1.5 };
    assert!(high.validate().is_ok());

    for closed in [0, 65, u32::MAX] {
        assert_eq!(only(&Ranges { closed, ..ranges() }), "closed: must be from 1 to 64");
    }
    for open in [-6, 5] {
        assert_eq!(only(&Ranges { open, ..ranges() }), "open: must be at least -5 and less than 5");
    }
    assert_eq!(only(&Ranges { from: 9, ..ranges() }), "from: must be at least 10");
    assert_eq!(only(&Ranges { up_to: 0, ..ranges() }), "up_to: must be at most -1");
    assert_eq!(only(&Ranges { below: 3, ..ranges() }), "below: must be less than 3");
    for float in [-1.500_001, 1.000_001, f32::INFINITY, f32::NEG_INFINITY] {
        assert_eq!(only(&Ranges { float, ..ranges() }), "float: must be from -1.5 to 1");
    }
}

#[test]
fn nan_is_in_no_range() {
    #[derive(Validate)]
    struct HalfOpen {
        #[message(range(..=1.0))]
        a: f64,
        #[message(range(0.0..))]
        b: f64,
    }
    assert_eq!(broken(&HalfOpen { a: f64::NAN, b: f64::NAN }), ["a range", "b range"]);
    assert_eq!(only(&Ranges { float: f32::NAN, ..ranges() }), "float: must be from -1.5 to 1");
}

#[test]
fn bounds_at_the_ends_of_the_type_lose_nothing() {
    #[derive(Validate)]
    struct Wide {
        #[message(range(..=340282366920938463463374607431768211454))]
        unsigned: u128,
        #[message(range(-170141183460469231731687303715884105727..))]
        signed: i128,
        // A `f64` cannot tell this bound from the next number.
        #[message(range(..=9007199254740992))]
        precise: u64,
    }
    let good = Wide { unsigned: u128::MAX - 1, signed: i128::MIN + 1, precise: 1 << 53 };
    assert!(good.validate().is_ok());
    let bad = Wide { unsigned: u128::MAX, signed: i128::MIN, precise: (1 << 53) + 1 };
    assert_eq!(broken(&bad), ["unsigned range", "signed range", "precise range"]);
}

#[test]
fn bounds_can_be_constants() {
    const MAX: u16 = 300;
    struct Limits;
    impl Limits {
        const MIN: usize = 2;
    }

    #[derive(Validate)]
    struct Constants<const N: usize> {
        #[message(range(1..=MAX))]
        size: u16,
        #[message(length(Limits::MIN..N))]
        name: String,
    }
    assert!(Constants::<4> { size: 300, name: "abc".into() }.validate().is_ok());
    assert_eq!(broken(&Constants::<4> { size: 301, name: "abcd".into() }), ["size range", "name length"]);
    assert_eq!(broken(&Constants::<4> { size: 0, name: "a".into() }), ["size range", "name length"]);
}
