//! The declarations of message types and chains of versions: messages of older releases are read, those of
//! newer ones are distinguished from malformed ones.

use jobqueue::codec::{Json, decode_message, encode_message};
use jobqueue::message::DecodeError;
use jobqueue::validate::{Path, Violations};
use jobqueue::{JobError, QueueMessage, Storage, Validate, Worker};
use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "thumb")]
struct V1 {
    // The limit of the first release; later ones allow more.
    #[message(range(1..=100))]
    width: u32,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "thumbnail", alias = "thumbnail.b", alias = "thumbnail.a")]
#[message(version = 2, upgrade_from = V1)]
struct V2 {
    width: u32,
    height: Option<u32>,
}

impl From<V1> for V2 {
    fn from(old: V1) -> Self {
        Self { width: old.width, height: None }
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "thumbnail", version = 5, upgrade_from = V2)]
struct V5 {
    #[message(range(..1000))]
    size: u32,
}

impl TryFrom<V2> for V5 {
    type Error = &'static str;
    fn try_from(old: V2) -> Result<Self, &'static str> {
        Ok(Self { size: old.width.max(old.height.ok_or("a thumbnail has a height")?) })
    }
}

#[test]
fn the_declarations_are_constants() {
    assert_eq!(V1::QUEUE, "thumbnails");
    assert_eq!(V1::KIND, "thumb");
    assert_eq!(V1::VERSION, 1);
    assert_eq!(V1::ALIASES.len(), 0);
    assert_eq!(V2::VERSION, 2);
    assert_eq!(V2::ALIASES, &["thumbnail.b", "thumbnail.a"][..]);
    assert_eq!(V5::VERSION, 5);
}

#[test]
fn a_chain_of_three_reads_every_link() {
    assert_eq!(decode_message::<V5>(5, br#"{"size":7}"#).unwrap(), V5 { size: 7 });
    assert_eq!(decode_message::<V5>(2, br#"{"width":1,"height":9}"#).unwrap(), V5 { size: 9 });
    assert_eq!(decode_message::<V2>(1, br#"{"width":3}"#).unwrap(), V2 { width: 3, height: None });
}

#[test]
fn a_refused_upgrade_says_between_which_versions_and_why() {
    // Through two links: 1 → 2 works, 2 → 5 does not.
    match decode_message::<V5>(1, br#"{"width":3}"#) {
        Err(error @ DecodeError::Upgrade { from: 2, to: 5, .. }) => {
            let source = std::error::Error::source(&error).unwrap();
            assert_eq!(source.to_string(), "a thumbnail has a height");
            assert!(!error.is_newer_version());
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn newer_versions_are_told_from_unlinked_versions() {
    for version in [6, u32::MAX] {
        let error = decode_message::<V5>(version, b"{}").unwrap_err();
        assert!(error.is_newer_version(), "{error}");
        assert!(matches!(error, DecodeError::NewerVersion { found, newest: 5, .. } if found == version));
    }
    for version in [0, 3, 4] {
        let error = decode_message::<V5>(version, b"{}").unwrap_err();
        assert!(!error.is_newer_version(), "{error}");
        let told = matches!(error, DecodeError::OlderVersion { found, newest: 5, .. } if found == version);
        assert!(told, "{version}: {error:?}");
    }
}

#[test]
fn only_the_rules_of_the_present_version_count() {
    // 500 breaks the rule of V1 and keeps that of V5; 1000 breaks that of V5.
    assert!(decode_message::<V5>(2, br#"{"width":500,"height":500}"#).is_ok());
    assert!(decode_message::<V2>(1, br#"{"width":500}"#).is_ok());
    let error = decode_message::<V5>(2, br#"{"width":1000,"height":1}"#).unwrap_err();
    assert!(matches!(error, DecodeError::Invalid(_)), "{error:?}");
}

#[test]
fn a_payload_of_another_form_is_the_codecs_error() {
    for payload in [&b""[..], b"{", b"[]", b"{}", br#"{"size":"a"}"#, b"\xff"] {
        let error = decode_message::<V5>(5, payload).unwrap_err();
        assert!(matches!(error, DecodeError::Codec(_)), "{error:?}");
    }
}

#[test]
fn type_accepts_its_aliases_and_its_predecessors() {
    assert_eq!(V1::kinds(), ["thumb"]);
    assert_eq!(V2::kinds(), ["thumbnail", "thumbnail.b", "thumbnail.a", "thumb"]);
    assert_eq!(V5::kinds(), ["thumbnail", "thumbnail.b", "thumbnail.a", "thumb"], "each once");
}

/// Unique work and schedules without a name belong to it.
#[test]
fn original_kind_is_an_alias_where_all_versions_were_renamed() {
    #[derive(Debug, Serialize, Deserialize, QueueMessage)]
    #[message(queue = "mails", kind = "mail.send")]
    struct Former {}

    #[derive(Debug, Serialize, Deserialize, QueueMessage)]
    #[message(queue = "mails", kind = "mail.send", alias = "mail", version = 2, upgrade_from = Former)]
    struct Renamed {}

    impl From<Former> for Renamed {
        fn from(_: Former) -> Self {
            Self {}
        }
    }

    // A second name, with a version: the newest type lists all former names.
    #[derive(Debug, Serialize, Deserialize, QueueMessage)]
    #[message(queue = "mails", kind = "post", alias = "mail", alias = "mail.send", version = 2, upgrade_from = Former)]
    struct RenamedAgain {}

    impl From<Former> for RenamedAgain {
        fn from(_: Former) -> Self {
            Self {}
        }
    }

    assert_eq!(Renamed::original_kind(), "mail");
    assert_eq!(RenamedAgain::original_kind(), "mail");
    assert_eq!(V5::original_kind(), "thumb");
}

#[test]
fn a_chain_can_begin_anew() {
    #[derive(Debug, Serialize, Deserialize, QueueMessage)]
    #[message(queue = "thumbnails", kind = "fresh", version = 3, upgrade_from = none)]
    struct Fresh {}

    assert!(decode_message::<Fresh>(3, b"{}").is_ok());
    let error = decode_message::<Fresh>(2, b"{}").unwrap_err();
    assert!(matches!(error, DecodeError::OlderVersion { found: 2, newest: 3, .. }), "{error:?}");
}

#[test]
fn an_invalid_message_is_neither_encoded_nor_decoded() {
    assert!(encode_message(&V1 { width: 101 }).is_err());
    assert_eq!(encode_message(&V1 { width: 100 }).unwrap(), br#"{"width":100}"#);
    assert!(matches!(decode_message::<V1>(1, br#"{"width":101}"#), Err(DecodeError::Invalid(_))));
}

mod wishes {
    use super::*;
    use jobqueue::Backoff;
    use jobqueue::message::MessageDefaults;
    use std::time::Duration;

    #[derive(Serialize, Deserialize, QueueMessage)]
    #[message(queue = "thumbnails", kind = "wishes", poison_threshold = 1000)]
    #[message(lease = "7d", max_run_time = "90s", backoff(base = "2s", max = "3h"))]
    struct Wishes {}

    #[test]
    fn become_defaults() {
        let backoff = Backoff::exponential(Duration::from_secs(2), Duration::from_secs(10_800));
        let expected = MessageDefaults::new()
            .with_poison_threshold(1000)
            .with_lease(Duration::from_secs(604_800))
            .with_max_run_time(Duration::from_secs(90))
            .with_backoff(backoff);
        assert_eq!(Wishes::DEFAULTS, expected);
        assert_eq!(V1::DEFAULTS, MessageDefaults::new());
    }
}

mod keys {
    use super::*;
    use std::borrow::Cow;

    macro_rules! keyed {
        ($name:ident, $ty:ty) => {
            #[derive(Serialize, Deserialize, QueueMessage)]
            #[message(queue = "thumbnails", kind = "keyed")]
            struct $name {
                #[message(key)]
                id: $ty,
            }
        };
    }
    type Alias = String;
    keyed!(Text, Alias);
    keyed!(Boxed, Box<str>);
    keyed!(Number, u64);
    keyed!(Address, std::net::Ipv4Addr);

    #[derive(Serialize, Deserialize, QueueMessage)]
    #[message(queue = "thumbnails", kind = "keyed")]
    enum Either {
        Number(#[message(key)] u64),
        Named {
            #[message(key)]
            name: String,
        },
        Neither,
    }

    #[test]
    fn are_borrowed_from_strings_and_written_from_the_rest() {
        assert!(matches!(Text { id: "a".into() }.key(), Some(Cow::Borrowed("a"))));
        assert!(matches!(Boxed { id: "a".into() }.key(), Some(Cow::Borrowed("a"))));
        assert_eq!(Number { id: 7 }.key().unwrap(), "7");
        assert_eq!(Address { id: [127, 0, 0, 1].into() }.key().unwrap(), "127.0.0.1");
        assert_eq!(V1 { width: 1 }.key(), None);
    }

    #[test]
    fn of_an_enum_are_those_of_its_variant() {
        assert_eq!(Either::Number(7).key().unwrap(), "7");
        assert!(matches!(Either::Named { name: "a".into() }.key(), Some(Cow::Borrowed("a"))));
        assert_eq!(Either::Neither.key(), None);
    }
}

mod generic {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize, QueueMessage)]
    #[message(queue = "thumbnails", kind = "generic.v1")]
    struct Old<T> {
        #[message(nested)]
        inner: T,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize, QueueMessage)]
    #[message(queue = "thumbnails", kind = "generic", version = 2, upgrade_from = Old<T>)]
    struct New<T>
    where
        T: Clone + Validate + Serialize + serde::de::DeserializeOwned + Send + Sync + 'static,
    {
        #[serde(bound = "")]
        #[message(nested, length(1..=2))]
        inner: Vec<T>,
    }

    impl<T> From<Old<T>> for New<T>
    where
        T: Clone + Validate + Serialize + serde::de::DeserializeOwned + Send + Sync + 'static,
    {
        fn from(old: Old<T>) -> Self {
            Self { inner: vec![old.inner] }
        }
    }

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Validate)]
    struct Item {
        #[message(range(1..))]
        n: u8,
    }

    #[test]
    fn messages_upgrade_and_validate() {
        let read = decode_message::<New<Item>>(1, br#"{"inner":{"n":3}}"#).unwrap();
        assert_eq!(read, New { inner: vec![Item { n: 3 }] });
        let error = decode_message::<New<Item>>(2, br#"{"inner":[{"n":3},{"n":0}]}"#).unwrap_err();
        assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "inner[1].n: must be at least 1");
    }
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "small", version = 2, upgrade_from = V1)]
struct Small {}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "large", version = 2, upgrade_from = V1)]
struct Large {}

impl From<V1> for Small {
    fn from(_: V1) -> Self {
        Self {}
    }
}

impl From<V1> for Large {
    fn from(_: V1) -> Self {
        Self {}
    }
}

// audit 24, core B2
#[test]
fn handlers_of_two_types_with_one_former_version_are_refused() {
    let small = Worker::builder(Storage::memory()).handle(async |_: Small| Ok::<(), JobError>(()));
    let refused = small.handle(async |_: Large| Ok::<(), JobError>(())).build().unwrap_err();
    let refused = refused.to_string();
    assert!(refused.contains("accept the kind `thumb`, those for `"), "{refused}");
    // newcomers 30, B17
    assert!(refused.contains("::Small` and `") && refused.contains("::Large`; give"), "{refused}");
}

#[derive(Serialize, Deserialize)]
struct Own<const RAW: bool>;

impl<const RAW: bool> Validate for Own<RAW> {
    fn validate_into(&self, _: &Path<'_>, _: &mut Violations) {}
}

impl<const RAW: bool> QueueMessage for Own<RAW> {
    const QUEUE: &'static str = "own";
    const KIND: &'static str = if RAW { "jobqueue.raw" } else { "*" };
    type Codec = Json;
}

// audit 24, core C3
#[test]
fn handler_of_a_kind_of_the_frameworks_own_is_refused() {
    let every = Worker::builder(Storage::memory()).handle(async |_: Own<false>| Ok::<(), JobError>(()));
    assert!(every.build().unwrap_err().to_string().contains("`*`"));
    let raw = Worker::builder(Storage::memory()).handle(async |_: Own<true>| Ok::<(), JobError>(()));
    assert!(raw.build().unwrap_err().to_string().contains("`jobqueue.raw`"));
}
