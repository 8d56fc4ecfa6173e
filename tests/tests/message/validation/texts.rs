//! Lengths and forms of text.

use std::collections::{BTreeSet, HashMap, VecDeque};

use jobqueue::Validate;

use super::{broken, only};

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
