#![allow(dead_code, non_camel_case_types, unused_macros)]

mod shadowed {
    pub struct Result;
    pub struct Option;
    pub struct Ok;
    pub struct Err;
    pub struct Some;
    pub struct None;
    pub struct Vec;
    pub struct String;
    pub struct Box;
    pub struct str;
    pub struct u32;
    pub struct usize;
    pub struct bool;
    pub struct u8;
    pub trait Send {}
    pub trait Sync {}
    pub trait From {}
    pub trait TryFrom {}
    pub trait Into {}
    pub trait Validate {}
    pub trait QueueMessage {}
    pub struct Path;
    pub struct Violations;
    pub mod core {}
    pub mod std {}
    pub mod serde {}
    macro_rules! assert {
        () => {};
    }

    fn rule(_: &::core::primitive::u64) -> ::core::result::Result<(), ::std::string::String> {
        ::core::result::Result::Ok(())
    }

    fn whole(_: &Thing) -> ::core::result::Result<(), ::std::string::String> {
        ::core::result::Result::Ok(())
    }

    const LOW: ::core::primitive::u64 = 1;

    // serde's own derive is not as careful, so the message is made serialisable by hand.
    #[derive(::jobqueue::QueueMessage)]
    #[message(queue = "things", kind = "thing", version = 2, upgrade_from = Old, alias = "a", validate = whole)]
    #[message(lease = "30s", poison_threshold = 3, backoff(base = "1s", max = "2s"))]
    pub struct Thing {
        #[message(key, length(LOW_LENGTH..=9), pattern = "a")]
        pub name: ::std::string::String,
        #[message(range(LOW..=9), with = rule)]
        pub n: ::core::primitive::u64,
        #[message(nested)]
        pub one: Either,
    }

    const LOW_LENGTH: ::core::primitive::usize = 1;

    #[derive(::jobqueue::QueueMessage)]
    #[message(queue = "things", kind = "thing")]
    pub struct Old;

    #[derive(::jobqueue::Validate)]
    pub enum Either {
        A(#[message(non_empty)] ::std::string::String),
        B {},
    }

    impl ::core::convert::From<Old> for Thing {
        fn from(_: Old) -> Self {
            Thing { name: ::std::string::String::new(), n: 1, one: Either::B {} }
        }
    }

    macro_rules! serde_by_hand {
        ($ty:ident, $value:expr) => {
            impl ::serde::Serialize for $ty {
                fn serialize<S: ::serde::Serializer>(
                    &self,
                    serializer: S,
                ) -> ::core::result::Result<S::Ok, S::Error> {
                    serializer.serialize_unit()
                }
            }

            impl<'de> ::serde::Deserialize<'de> for $ty {
                fn deserialize<D: ::serde::Deserializer<'de>>(
                    deserializer: D,
                ) -> ::core::result::Result<Self, D::Error> {
                    let () = ::serde::Deserialize::deserialize(deserializer)?;
                    ::core::result::Result::Ok($value)
                }
            }
        };
    }
    serde_by_hand!(Old, Old);
    serde_by_hand!(Thing, Thing::from(Old));
    use ::core::convert::From as _;
}

#[test]
fn compiles_and_checks() {
    use jobqueue::Validate;
    let thing = shadowed::Thing { name: "a".into(), n: 1, one: shadowed::Either::A(String::new()) };
    assert_eq!(thing.validate().unwrap_err().to_string(), "one.A: must not be empty");
}
