//! Rules on fields that may be absent, and rules of the application's own.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::sync::Arc;

use jobqueue::Validate;

use super::broken;
use super::ranges::{Ranges, ranges};

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

#[test]
fn absent_field_breaks_no_rule_and_present_one_is_checked() {
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
