//! Golden files: the effect of a wire form change on the tests of an application.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};

use jobqueue::QueueMessage;
use jobqueue::codec::{Codec, CodecError, Json};
use jobqueue_testing::golden::{GoldenError, check_in};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "thumbnail/request")]
struct V1 {
    #[message(range(1..))]
    width: u32,
    names: Vec<String>,
}

fn v1() -> V1 {
    V1 { width: 3, names: vec!["a".into()] }
}

/// The type after a field was renamed.
#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "thumbnail/request")]
struct Renamed {
    size: u32,
    names: Vec<String>,
}

/// The type after a field was added that old messages may lack.
#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "thumbnail/request")]
struct Extended {
    width: u32,
    names: Vec<String>,
    #[serde(default)]
    height: u32,
}

/// The renamed field, done correctly.
#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "thumbnails", kind = "thumbnail.new", version = 2, upgrade_from = V1)]
struct V2 {
    size: u32,
}

impl From<V1> for V2 {
    fn from(old: V1) -> Self {
        Self { size: old.width }
    }
}

const FILE: &str = "thumbnail%2Frequest.v1.json";

fn blessed() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    check_in(folder.path(), "", &v1(), true).unwrap();
    folder
}

fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The type after its key was moved to another field, and itself to another queue.
#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "pictures", kind = "thumbnail/request")]
struct Moved {
    #[message(key)]
    width: u32,
    names: Vec<String>,
}

/// An integer that no 64 bits hold, beside texts that only look like one.
#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "ledgers", kind = "ledger")]
struct Wide {
    balance: u128,
    note: String,
}

/// JSON under a media type of its own, before and after that was registered.
struct SheetCodec<const REGISTERED: bool>;

impl<const REGISTERED: bool> Codec for SheetCodec<REGISTERED> {
    const CONTENT_TYPE: &'static str =
        if REGISTERED { "application/vnd.sheet" } else { "application/x-sheet" };

    fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, CodecError> {
        Json::encode(value)
    }

    fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
        Json::decode(bytes)
    }
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "sheets", kind = "sheet", codec = SheetCodec<false>)]
struct Sheet {
    rows: u32,
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "sheets", kind = "sheet", codec = SheetCodec<true>)]
struct SheetOfVendor {
    rows: u32,
}

#[test]
fn another_key_or_queue_is_a_change() {
    let folder = blessed();
    let moved = Moved { width: 3, names: vec!["a".into()] };
    let error = check_in(folder.path(), "", &moved, false).unwrap_err().to_string();
    for line in ["+ key: \"3\"", "- queue: \"thumbnails\"", "+ queue: \"pictures\""] {
        assert!(error.contains(line), "{line} in {error}");
    }
}

/// The next version goes to another queue, with another key: messages of the former one would be left behind
/// there.
#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "pictures", kind = "thumbnail/request", version = 2, upgrade_from = V1)]
struct MovedV2 {
    #[message(key)]
    size: u32,
}

impl From<V1> for MovedV2 {
    fn from(old: V1) -> Self {
        Self { size: old.width }
    }
}

#[test]
fn another_key_or_queue_of_the_next_version_is_a_change() {
    let folder = blessed();
    for bless in [true, false] {
        let error = check_in(folder.path(), "", &MovedV2 { size: 3 }, bless).unwrap_err();
        match error {
            GoldenError::Moved { differences, .. } => {
                let text = differences.to_string();
                for line in ["+ key: \"3\"", "- queue: \"thumbnails\"", "+ queue: \"pictures\""] {
                    assert!(text.contains(line), "{line} in {text}");
                }
            }
            // Without a file of its own it is missing first.
            error => assert!(!bless && matches!(error, GoldenError::Missing { .. }), "{error:?}"),
        }
    }
    assert_eq!(files(folder.path()), [FILE]);
}

#[test]
fn integers_beyond_64_bits_are_pinned_exactly() {
    let folder = tempfile::tempdir().unwrap();
    let wide = |balance| Wide { balance, note: r#"\"340282366920938463463374607431768211455"#.into() };
    check_in(folder.path(), "", &wide(u128::MAX), true).unwrap();
    check_in(folder.path(), "", &wide(u128::MAX), false).unwrap();
    let near = check_in(folder.path(), "", &wide(u128::MAX - 1), false).unwrap_err();
    assert!(matches!(near, GoldenError::Changed { .. }), "{near:?}");
    check_in(folder.path(), "small", &wide(u64::MAX.into()), true).unwrap();
    let readable = fs::read_to_string(folder.path().join("ledger.v1.small.json")).unwrap();
    assert!(readable.contains("18446744073709551615"), "{readable}");
}

#[test]
fn a_missing_file_is_told_and_created_only_when_blessed() {
    let folder = tempfile::tempdir().unwrap();
    let error = check_in(folder.path(), "", &v1(), false).unwrap_err();
    assert!(matches!(error, GoldenError::Missing { .. }), "{error:?}");
    assert!(error.to_string().contains("JOBQUEUE_BLESS=1"), "{error}");
    assert!(files(folder.path()).is_empty());

    check_in(folder.path(), "", &v1(), true).unwrap();
    check_in(folder.path(), "two/", &v1(), true).unwrap();
    assert_eq!(files(folder.path()), [FILE, "thumbnail%2Frequest.v1.two%2F.json"]);
    check_in(folder.path(), "", &v1(), false).unwrap();
}

#[test]
fn renamed_field_shows_its_diff_and_cannot_be_blessed() {
    let folder = blessed();
    let renamed = Renamed { size: 3, names: vec!["a".into(), "b".into()] };
    let error = check_in(folder.path(), "", &renamed, false).unwrap_err();
    assert!(matches!(error, GoldenError::Changed { .. }), "{error:?}");
    for line in ["- data.width: 3", "+ data.size: 3", "+ data.names[1]: \"b\""] {
        assert!(error.to_string().lines().any(|l| l == line), "{line} in {error}");
    }
    let before = fs::read(folder.path().join(FILE)).unwrap();
    let error = check_in(folder.path(), "", &renamed, true).unwrap_err();
    assert!(matches!(error, GoldenError::Unreadable { .. }), "{error:?}");
    assert!(error.report().contains("lacks the field `size`"), "{}", error.report());
    assert_eq!(fs::read(folder.path().join(FILE)).unwrap(), before);
}

#[test]
fn a_compatible_change_is_blessed() {
    let folder = blessed();
    let extended = Extended { width: 3, names: vec![], height: 4 };
    assert!(check_in(folder.path(), "", &extended, false).is_err());
    check_in(folder.path(), "", &extended, true).unwrap();
    check_in(folder.path(), "", &extended, false).unwrap();
}

#[test]
fn old_files_stay_readable_through_the_chain() {
    let folder = blessed();
    check_in(folder.path(), "", &V2 { size: 3 }, true).unwrap();
    assert_eq!(files(folder.path()).len(), 2);
    check_in(folder.path(), "", &V2 { size: 3 }, false).unwrap();

    let old = folder.path().join(FILE);
    let text = fs::read_to_string(&old).unwrap().replace("\"width\"", "\"breadth\"");
    fs::write(&old, text).unwrap();
    let error = check_in(folder.path(), "", &V2 { size: 3 }, false).unwrap_err();
    assert!(matches!(&error, GoldenError::Unreadable { path, .. } if *path == old), "{error:?}");
}

// audit 4, D6
#[test]
fn another_media_type_cannot_be_blessed() {
    let folder = tempfile::tempdir().unwrap();
    check_in(folder.path(), "", &Sheet { rows: 1 }, true).unwrap();
    let error = check_in(folder.path(), "", &SheetOfVendor { rows: 1 }, true).unwrap_err();
    assert!(matches!(error, GoldenError::Unreadable { .. }), "{error:?}");
    assert!(error.report().contains("`application/x-sheet`"), "{}", error.report());
}

// audit 4, D6
#[test]
fn former_kind_without_alias_cannot_be_blessed() {
    let folder = blessed();
    let current = folder.path().join(FILE);
    let former = folder.path().join("former.v1.json");
    let text = fs::read_to_string(&current).unwrap().replace("thumbnail/request", "former");
    fs::write(&former, text).unwrap();
    fs::remove_file(current).unwrap();
    check_in(folder.path(), "", &Sheet { rows: 1 }, true).unwrap();
    for bless in [true, false] {
        let error = check_in(folder.path(), "", &v1(), bless).unwrap_err();
        let is_missing = matches!(error, GoldenError::Missing { .. });
        assert_eq!(is_missing, !bless, "{error:?}");
        assert!(is_missing || error.to_string().contains("alias = \"former\""), "{error}");
    }
    fs::remove_file(former).unwrap();
    check_in(folder.path(), "", &v1(), true).unwrap();
}

#[test]
fn halves_of_serde_that_disagree_are_found() {
    #[derive(Serialize, Deserialize, QueueMessage)]
    #[message(queue = "thumbnails", kind = "lossy")]
    struct Lossy {
        #[serde(skip_deserializing)]
        lost: u32,
    }
    let folder = tempfile::tempdir().unwrap();
    let error = check_in(folder.path(), "", &Lossy { lost: 1 }, true).unwrap_err();
    assert!(matches!(error, GoldenError::RoundTrip { .. }), "{error:?}");
    assert!(error.to_string().contains("- data.lost: 1\n+ data.lost: 0"), "{error}");
}

/// A codec that writes a value differently each time, as one with a random nonce.
struct Sealed;

static NONCE: AtomicU8 = AtomicU8::new(0);

impl Codec for Sealed {
    const CONTENT_TYPE: &'static str = "application/x-sealed";

    fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, CodecError> {
        let nonce = NONCE.fetch_add(1, Ordering::Relaxed);
        let sealed = Json::encode(value)?.into_iter().map(|byte| byte ^ nonce);
        Ok(std::iter::once(nonce).chain(sealed).collect())
    }

    fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
        let (nonce, sealed) = bytes.split_first().ok_or_else(|| CodecError::new("empty"))?;
        Json::decode(&sealed.iter().map(|byte| byte ^ nonce).collect::<Vec<_>>())
    }
}

// round 30, newcomer b
#[test]
fn payload_that_is_written_differently_each_time_is_compared_by_its_value() {
    #[derive(Serialize, Deserialize, QueueMessage)]
    #[message(queue = "diagnoses", kind = "diagnosis", codec = Sealed)]
    struct Diagnosis {
        patient: String,
    }
    let folder = tempfile::tempdir().unwrap();
    let diagnosis = |patient: &str| Diagnosis { patient: patient.into() };
    check_in(folder.path(), "", &diagnosis("ada"), true).unwrap();
    let path = folder.path().join("diagnosis.v1.json");
    let blessed = fs::read_to_string(&path).unwrap();
    check_in(folder.path(), "", &diagnosis("ada"), false).unwrap();
    check_in(folder.path(), "", &diagnosis("ada"), true).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), blessed);
    let error = check_in(folder.path(), "", &diagnosis("bob"), false).unwrap_err().to_string();
    assert!(error.contains("- plain.patient: \"ada\"\n+ plain.patient: \"bob\""), "{error}");
    assert!(!error.contains("base64"), "{error}");
    // A payload that cannot be read any more is found.
    let cut = serde_json::from_str::<serde_json::Value>(&blessed).unwrap();
    let cut = blessed.replace(cut["data_base64"].as_str().unwrap(), "AAAA");
    fs::write(&path, cut).unwrap();
    let error = check_in(folder.path(), "", &diagnosis("ada"), false).unwrap_err();
    assert!(matches!(error, GoldenError::Unreadable { .. }), "{error:?}");
}

/// A [`Sealed`] codec over the form of maps whose keys are no strings, which JSON does not have.
struct SealedPairs;

impl Codec for SealedPairs {
    const CONTENT_TYPE: &'static str = "application/x-sealed-pairs";

    fn encode<T: Serialize + ?Sized>(_: &T) -> Result<Vec<u8>, CodecError> {
        Ok(vec![NONCE.fetch_add(1, Ordering::Relaxed)])
    }

    fn decode<T: DeserializeOwned>(_: &[u8]) -> Result<T, CodecError> {
        Json::decode(br#"{"seats":{}}"#)
    }
}

// review of round 31, c 15: its file was written, and "has changed" at each later run.
#[test]
fn value_that_json_cannot_hold_is_refused_with_a_random_codec() {
    #[derive(Serialize, Deserialize, QueueMessage)]
    #[message(queue = "halls", kind = "hall", codec = SealedPairs)]
    struct Hall {
        seats: BTreeMap<(u8, u8), String>,
    }
    let folder = tempfile::tempdir().unwrap();
    let hall = Hall { seats: BTreeMap::from([((1, 2), "ada".to_owned())]) };
    let error = check_in(folder.path(), "", &hall, true).unwrap_err();
    assert!(matches!(error, GoldenError::NotComparable(_)), "{error:?}");
    assert!(error.report().contains("key must be a string"), "{}", error.report());
    assert!(files(folder.path()).is_empty());
}

#[test]
fn an_example_that_could_not_be_sent_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let error = check_in(folder.path(), "", &V1 { width: 0, names: vec![] }, true).unwrap_err();
    assert!(error.report().ends_with("caused by: width: must be at least 1"), "{}", error.report());
    assert!(files(folder.path()).is_empty());
}

#[test]
fn a_file_that_is_something_else_is_told() {
    let folder = blessed();
    fs::write(folder.path().join("other.json"), "[]").unwrap();
    let error = check_in(folder.path(), "", &v1(), false).unwrap_err();
    assert!(matches!(error, GoldenError::Malformed { .. }), "{error:?}");
}

/// Uses the committed file in `tests/golden/`.
#[test]
fn the_macro_looks_into_the_calling_crate() {
    jobqueue_testing::assert_golden!(v1());
}

#[test]
#[should_panic(expected = "JOBQUEUE_BLESS=1")]
fn the_macro_panics_with_the_report() {
    jobqueue_testing::assert_golden!(V1 { width: 4, ..v1() });
}
