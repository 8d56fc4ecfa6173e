//! Enums, and several violations at once.

use jobqueue::Validate;
use jobqueue::validate::Violations;

use super::broken;
use super::paths::{Slice, slice};

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
        assert_eq!(violations.len(), count);
        assert_eq!(violations.iter().count(), kept);
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
