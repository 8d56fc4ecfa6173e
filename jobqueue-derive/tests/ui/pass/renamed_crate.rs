// What the macro would find without `crate = …`.
mod jobqueue {}

mod inner {
    pub mod reexport {
        pub use renamed::*;
    }

    #[derive(serde::Serialize, serde::Deserialize, renamed::QueueMessage)]
    #[message(queue = "things", kind = "thing", crate = self::reexport)]
    pub struct Thing {
        #[message(range(1..), key)]
        n: u32,
    }

    #[derive(renamed::Validate)]
    #[message(crate = "renamed")]
    pub struct Part {
        #[message(pattern = "a", non_empty)]
        text: String,
    }

    pub fn check() {
        use renamed::Validate;
        assert!(Thing { n: 0 }.validate().is_err());
        assert!(Part { text: String::new() }.validate().is_err());
    }
}

#[test]
fn compiles_and_checks() {
    use renamed::QueueMessage;
    assert_eq!(inner::Thing::KIND, "thing");
    inner::check();
}
