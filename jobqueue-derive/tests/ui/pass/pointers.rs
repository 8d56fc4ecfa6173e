use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use jobqueue::Validate;

fn one_word(text: &str) -> Result<(), &'static str> {
    if text.contains(' ') { Err("must be one word") } else { Ok(()) }
}

fn even(n: &u32) -> Result<(), &'static str> {
    if n.is_multiple_of(2) { Ok(()) } else { Err("must be even") }
}

fn few(items: &[u8]) -> Result<(), &'static str> {
    if items.len() < 3 { Ok(()) } else { Err("must have fewer than three items") }
}

#[derive(Validate)]
struct Part<'a> {
    #[message(with = one_word, non_empty)]
    boxed: Box<str>,
    #[message(with = one_word)]
    shared: Option<Arc<str>>,
    #[message(with = one_word)]
    perhaps_borrowed: Cow<'a, str>,
    #[message(with = one_word)]
    borrowed: &'a str,
    #[message(with = even)]
    number: Box<u32>,
    #[message(with = even)]
    counted: Option<Rc<u32>>,
    #[message(with = few)]
    items: Option<Box<[u8]>>,
}

#[test]
fn compiles_and_checks() {
    let bad = "two words";
    let part = Part {
        boxed: bad.into(),
        shared: Some(bad.into()),
        perhaps_borrowed: bad.into(),
        borrowed: bad,
        number: Box::new(1),
        counted: Some(Rc::new(1)),
        items: Some(vec![0; 3].into()),
    };
    assert_eq!(part.validate().unwrap_err().len(), 7);
    let absent = Part { shared: None, counted: None, items: None, ..part };
    assert_eq!(absent.validate().unwrap_err().len(), 4);
}
