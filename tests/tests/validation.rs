//! The rules of `#[message(…)]`: where each begins to object, what path it names, and that all are collected.

#![allow(clippy::unwrap_used)] // Helpers of tests may.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;

use jobqueue::{Validate, Violations};

/// `path rule` of each violation, in order.
fn broken(value: &impl Validate) -> Vec<String> {
    let violations = value.validate().err().unwrap_or_default();
    violations.iter().map(|v| format!("{} {}", v.path(), v.rule())).collect()
}

fn only(value: &impl Validate) -> String {
    let violations = value.validate().unwrap_err();
    assert_eq!(violations.len(), 1, "{violations}");
    violations.to_string()
}

#[derive(Validate)]
struct Ranges {
    #[message(range(1..=64))]
    closed: u32,
    #[message(range(-5..5))]
    open: i8,
    #[message(range(10..))]
    from: u64,
    #[message(range(..=-1))]
    up_to: i128,
    #[message(range(..3))]
    below: usize,
    #[message(range(-1.5..=1))]
    float: f32,
}

fn ranges() -> Ranges {
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

#[test]
fn length_counts_characters_or_items() {
    #[derive(Validate)]
    struct Lengths {
        #[message(length(2..=3))]
        text: String,
        #[message(length(..=1))]
        list: Vec<u8>,
        #[message(length(1..))]
        map: HashMap<String, ()>,
        #[message(length(2..3))]
        set: BTreeSet<u8>,
        #[message(length(..2))]
        queue: VecDeque<u8>,
    }
    let good = || Lengths {
        text: "äöü".into(),
        list: vec![1],
        map: HashMap::from([(String::new(), ())]),
        set: BTreeSet::from([1, 2]),
        queue: VecDeque::from([1]),
    };
    assert!(good().validate().is_ok());
    assert_eq!(only(&Lengths { text: "ä".into(), ..good() }), "text: must have 2 to 3 characters, has 1");
    assert_eq!(
        only(&Lengths { text: "🦀🦀🦀🦀".into(), ..good() }),
        "text: must have 2 to 3 characters, has 4"
    );
    assert_eq!(only(&Lengths { list: vec![1, 2], ..good() }), "list: must have at most 1 items, has 2");
    assert_eq!(only(&Lengths { map: HashMap::new(), ..good() }), "map: must have at least 1 items, has 0");
    assert_eq!(
        only(&Lengths { set: BTreeSet::from([1]), ..good() }),
        "set: must have exactly 2 items, has 1"
    );
    assert_eq!(only(&Lengths { queue: [1, 2].into(), ..good() }), "queue: must have at most 1 items, has 2");
}

#[derive(Validate)]
struct Texts {
    #[message(url)]
    url: String,
    #[message(email)]
    email: String,
    #[message(pattern = r"^[a-z]{2,3}$")]
    pattern: String,
    #[message(non_empty)]
    non_empty: String,
}

fn texts() -> Texts {
    Texts {
        url: "https://example.com/a?b".into(),
        email: "a.b+c@example.com".into(),
        pattern: "ab".into(),
        non_empty: " ".into(),
    }
}

#[test]
fn forms_of_text() {
    assert!(texts().validate().is_ok());
    for url in ["", "example.com", "/a", "https://", "http://[::1", "https://exa mple.com"] {
        assert_eq!(broken(&Texts { url: url.into(), ..texts() }), ["url url"], "{url}");
    }
    for email in ["", "a", "@example.com", "a@", "A <a@example.com>", "a@b@c", "a b@example.com"] {
        assert_eq!(broken(&Texts { email: email.into(), ..texts() }), ["email email"], "{email}");
    }
    for pattern in ["a", "abcd", "AB", "ab\n"] {
        let found = only(&Texts { pattern: pattern.into(), ..texts() });
        assert_eq!(found, "pattern: must match ^[a-z]{2,3}$", "{pattern}");
    }
    assert_eq!(only(&Texts { non_empty: String::new(), ..texts() }), "non_empty: must not be empty");
}

#[test]
fn a_violation_never_quotes_the_value() {
    let secret = "SECRET";
    let value = Texts { url: secret.into(), email: secret.into(), pattern: secret.into(), ..texts() };
    let violations = value.validate().unwrap_err();
    assert_eq!(violations.len(), 3);
    assert!(!format!("{violations} {violations:?}").contains(secret));
}

#[test]
fn what_is_absent_breaks_no_rule_and_what_is_present_is_checked() {
    type Maybe<T> = Option<T>;

    #[derive(Validate)]
    struct Optional {
        #[message(range(1..=2))]
        number: Maybe<u8>,
        #[message(length(2..=2))]
        text: Option<Box<str>>,
        #[message(url)]
        url: Option<Arc<str>>,
        #[message(pattern = "^x")]
        pattern: Option<Cow<'static, str>>,
        #[message(non_empty)]
        list: Maybe<Vec<u8>>,
        #[message(range(2..))]
        non_zero: Option<NonZeroU32>,
        #[message(with = even)]
        with: Maybe<u32>,
        #[message(nested)]
        nested: Maybe<Box<Ranges>>,
        #[message(range(..9))]
        twice: Option<Option<i64>>,
    }
    let none = Optional {
        number: None,
        text: None,
        url: None,
        pattern: None,
        list: None,
        non_zero: None,
        with: None,
        nested: None,
        twice: Some(None),
    };
    assert!(none.validate().is_ok());
    let bad = Optional {
        number: Some(3),
        text: Some("a".into()),
        url: Some("a".into()),
        pattern: Some("a".into()),
        list: Some(vec![]),
        non_zero: Some(NonZeroU32::MIN),
        with: Some(1),
        nested: Some(Box::new(Ranges { closed: 0, ..ranges() })),
        twice: Some(Some(9)),
    };
    let expected = [
        "number range",
        "text length",
        "url url",
        "pattern pattern",
        "list non_empty",
        "non_zero range",
        "with with",
        "nested.closed range",
        "twice range",
    ];
    assert_eq!(broken(&bad), expected);
}

fn even(n: &u32) -> Result<(), &'static str> {
    if n.is_multiple_of(2) { Ok(()) } else { Err("must be even") }
}

#[test]
fn rules_of_ones_own_take_the_field_or_what_it_holds() {
    fn lower(text: &str) -> Result<(), String> {
        text.chars().all(char::is_lowercase).then_some(()).ok_or_else(|| "must be in lower case".to_owned())
    }
    fn sorted(items: &[u32]) -> Result<(), &'static str> {
        items.is_sorted().then_some(()).ok_or("must be sorted")
    }
    fn some(value: &Option<u32>) -> Result<(), &'static str> {
        value.map(|_| ()).ok_or("must be given")
    }
    fn any<T>(_: &T) -> Result<(), std::convert::Infallible> {
        Ok(())
    }

    #[derive(Validate)]
    #[message(validate = Custom::consistent)]
    struct Custom {
        #[message(with = lower)]
        text: String,
        #[message(with = lower)]
        maybe: Option<String>,
        #[message(with = sorted)]
        list: Vec<u32>,
        #[message(with = some)]
        required: Option<u32>,
        #[message(with = any)]
        any: u8,
    }
    impl Custom {
        fn consistent(&self) -> Result<(), &'static str> {
            if self.any == 0 { Err("`any` and the rest disagree") } else { Ok(()) }
        }
    }
    let good =
        Custom { text: "a".into(), maybe: Some("b".into()), list: vec![1, 2], required: Some(0), any: 1 };
    assert!(good.validate().is_ok());
    let bad = Custom { text: "A".into(), maybe: Some("B".into()), list: vec![2, 1], required: None, any: 0 };
    assert_eq!(
        bad.validate().unwrap_err().to_string(),
        "text: must be in lower case; maybe: must be in lower case; list: must be sorted; \
         required: must be given; message: `any` and the rest disagree"
    );
}

#[derive(Validate, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Slice {
    #[message(non_empty)]
    uri: String,
}

fn slice(uri: &str) -> Slice {
    Slice { uri: uri.into() }
}

#[test]
fn paths_lead_through_lists_maps_and_pointers() {
    #[derive(Validate)]
    struct Mosaic {
        #[message(nested)]
        slices: Vec<Slice>,
        #[message(nested)]
        array: [Slice; 2],
        #[message(nested)]
        by_name: BTreeMap<String, Vec<Slice>>,
        #[message(nested)]
        by_number: HashMap<u64, Slice>,
        #[message(nested)]
        queue: VecDeque<Option<Slice>>,
        #[message(nested)]
        sorted: BTreeSet<Slice>,
        #[message(nested)]
        set: HashSet<Slice>,
        #[message(nested)]
        boxed: Box<Slice>,
    }
    let mosaic = Mosaic {
        slices: vec![slice("a"), slice("a"), slice("a"), slice("")],
        array: [slice("a"), slice("")],
        by_name: BTreeMap::from([("a \"b\"".to_owned(), vec![slice("a"), slice("")])]),
        by_number: HashMap::from([(7, slice(""))]),
        queue: [None, Some(slice(""))].into(),
        sorted: BTreeSet::from([slice("")]),
        set: HashSet::from([slice("")]),
        boxed: Box::new(slice("")),
    };
    let expected = [
        "slices[3].uri non_empty",
        "array[1].uri non_empty",
        r#"by_name["a \"b\""][1].uri non_empty"#,
        r#"by_number["7"].uri non_empty"#,
        "queue[1].uri non_empty",
        "sorted[0].uri non_empty",
        "set[0].uri non_empty",
        "boxed.uri non_empty",
    ];
    assert_eq!(broken(&mosaic), expected);
}

#[test]
fn paths_name_what_is_on_the_wire() {
    #[derive(Validate, serde::Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Renamed {
        #[message(range(1..))]
        tile_size: u8,
        #[serde(rename = "URI")]
        #[message(range(1..))]
        address: u8,
        #[serde(rename(serialize = "out", deserialize = "in"))]
        #[message(range(1..))]
        both: u8,
        #[message(range(1..))]
        r#type: u8,
        #[serde(flatten)]
        #[message(nested)]
        rest: Rest,
        #[message(nested)]
        pair: Pair,
    }
    #[derive(Validate, serde::Serialize)]
    struct Rest {
        #[message(range(1..))]
        more: u8,
    }
    #[derive(Validate, serde::Serialize)]
    struct Pair(#[message(range(1..))] u8, #[message(range(1..))] u8);

    let value =
        Renamed { tile_size: 0, address: 0, both: 0, r#type: 0, rest: Rest { more: 0 }, pair: Pair(1, 0) };
    let paths = ["tileSize", "URI", "out", "type", "more", "pair[1]"];
    assert_eq!(broken(&value), paths.map(|path| format!("{path} range")));
    // Not only what the attribute says, but what serde does.
    let wire = serde_json::to_value(&value).unwrap();
    for path in &paths[..5] {
        assert!(wire.get(path).is_some(), "{path} in {wire}");
    }
}

#[test]
fn the_variant_of_an_enum_is_checked() {
    #[derive(Validate, serde::Serialize)]
    #[serde(rename_all = "snake_case")]
    enum External {
        UnitOnly,
        TwoNumbers(u8, #[message(range(1..))] u8),
        Named {
            #[message(non_empty)]
            name: String,
            other: u8,
        },
    }
    assert!(External::UnitOnly.validate().is_ok());
    assert_eq!(broken(&External::TwoNumbers(0, 0)), ["two_numbers[1] range"]);
    assert_eq!(broken(&External::Named { name: String::new(), other: 0 }), ["named.name non_empty"]);

    #[derive(Validate, serde::Serialize)]
    #[serde(tag = "t", rename_all_fields = "UPPERCASE")]
    enum Internal {
        Named {
            #[message(non_empty)]
            name: String,
        },
    }
    assert_eq!(broken(&Internal::Named { name: String::new() }), ["NAME non_empty"]);

    #[derive(Validate, serde::Serialize)]
    #[serde(tag = "t", content = "c")]
    enum Adjacent {
        Named {
            #[message(non_empty)]
            name: String,
        },
    }
    assert_eq!(broken(&Adjacent::Named { name: String::new() }), ["c.name non_empty"]);
}

#[test]
fn all_violations_are_counted_and_a_hundred_kept() {
    #[derive(Validate)]
    struct Many {
        #[message(nested)]
        slices: Vec<Slice>,
    }
    for (count, kept) in [(99, 99), (100, 100), (101, 100), (5_000, 100)] {
        let violations: Violations = Many { slices: vec![slice(""); count] }.validate().unwrap_err();
        assert_eq!((violations.len(), violations.iter().count()), (count, kept));
        let text = violations.to_string();
        assert_eq!(text.ends_with(&format!("; and {} more", count - kept)), count > kept, "{text}");
    }
}

#[test]
fn several_rules_on_one_field_all_speak() {
    #[derive(Validate)]
    struct Several {
        #[message(length(3..), pattern = "^a", url)]
        text: String,
    }
    assert_eq!(broken(&Several { text: "b".into() }), ["text length", "text url", "text pattern"]);
}

mod any_number {
    use super::Validate;
    use proptest::prelude::*;
    use std::ops::RangeInclusive;

    /// Numbers of the whole type, of the range, and its two ends.
    fn near<T: Arbitrary + Copy>(range: RangeInclusive<T>) -> impl Strategy<Value = T>
    where
        RangeInclusive<T>: Strategy<Value = T>,
    {
        let (low, high) = (*range.start(), *range.end());
        prop_oneof![any::<T>(), range, Just(low), Just(high)]
    }

    macro_rules! numbers {
        ($($name:ident: $type:ty, $low:literal, $high:literal;)+) => {$(
            #[derive(Validate)]
            #[allow(non_camel_case_types)]
            struct $name {
                #[message(range($low..=$high))]
                closed: $type,
                #[message(range($low..$high))]
                open: $type,
            }

            proptest! {
                #[test]
                fn $name(n in near::<$type>($low..=$high)) {
                    let found: Vec<_> = super::broken(&$name { closed: n, open: n });
                    prop_assert_eq!(found.contains(&"closed range".to_owned()), !($low..=$high).contains(&n));
                    prop_assert_eq!(found.contains(&"open range".to_owned()), !($low..$high).contains(&n));
                }
            }
        )+};
    }
    numbers! {
        u8_range: u8, 3, 200;
        u16_range: u16, 3, 40_000;
        u32_range: u32, 3, 4_000_000_000;
        u64_range: u64, 3, 9_007_199_254_740_993;
        u128_range: u128, 3, 340282366920938463463374607431768211454;
        usize_range: usize, 3, 70_000;
        i8_range: i8, -100, 100;
        i16_range: i16, -3, 30_000;
        i32_range: i32, -2_000_000_000, 3;
        i64_range: i64, -9_007_199_254_740_993, 3;
        i128_range: i128, -3, 170141183460469231731687303715884105726;
        isize_range: isize, -3, 3;
        f32_range: f32, -0.5, 1e30;
        f64_range: f64, -0.5, 1e300;
    }
}
