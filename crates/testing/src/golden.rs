//! Pins the wire form of message types, so that an incompatible change fails a test.
//!
//! The module knows messages, codecs and JSON files, but no queues and no storages. Applications use it in
//! their tests through [`assert_golden!`](crate::assert_golden).

mod diff;
mod file;

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};

use jobqueue::QueueMessage;
use jobqueue::codec::{Codec, decode_any_version, encode_message};
use jobqueue::message::{DecodeError, EncodeError};

use file::Golden;

/// The environment variable that makes [`check`] write files when it is `1`.
const BLESS: &str = "JOBQUEUE_BLESS";

/// Compares a message with its golden file, and checks that every golden file of an earlier version can still
/// be read.
///
/// The file is in `golden/` of the calling crate and is named after kind and version:
/// `golden/thumbnail.request.v1.json`. A second argument distinguishes several examples of a type
/// (`golden/thumbnail.request.v1.large.json`). Run the test once with `JOBQUEUE_BLESS=1` to create the file,
/// and commit it. From then on:
/// - A change of the wire form, the queue or the key fails the test and shows the differences.
/// - Files of earlier versions, of aliases and of the types named by `upgrade_from` must still decode and be
///   valid, under the media type, with the queue and with the key in the file.
/// - A file of the same Rust type under a former kind fails the test, unless `alias` names that kind. If a
///   change renames both the kind and the module of the type, the file is not recognised.
///
/// If the codec writes a value differently each time, for example with a random nonce, the file also has the
/// example as serde writes it, and that is compared. The payload in the file must still be readable.
///
/// After raising `version`, bless again. The file of the old version stays, and must stay readable.
///
/// ```no_run
/// use jobqueue::QueueMessage;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, QueueMessage)]
/// #[message(queue = "thumbnails", kind = "thumbnail.request")]
/// struct Thumbnail {
///     photo: String,
/// }
///
/// // In a #[test]:
/// jobqueue_testing::assert_golden!(Thumbnail { photo: "cat.png".into() });
/// ```
///
/// # Panics
/// If the message and the files disagree, with the text of a [`GoldenError`].
#[macro_export]
macro_rules! assert_golden {
    ($message:expr $(,)?) => {
        $crate::assert_golden!($message, "")
    };
    ($message:expr, $example:expr $(,)?) => {
        match $crate::golden::check(::core::env!("CARGO_MANIFEST_DIR"), $example, &$message) {
            ::core::result::Result::Ok(()) => {}
            ::core::result::Result::Err(error) => ::core::panic!("{}", error.report()),
        }
    };
}

/// Implements [`assert_golden!`](crate::assert_golden) for the crate at `root`. `example` may be empty.
/// Writes files if the environment variable `JOBQUEUE_BLESS` is `1`.
///
/// # Errors
/// See [`GoldenError`].
pub fn check<M: QueueMessage>(root: impl AsRef<Path>, example: &str, message: &M) -> Result<(), GoldenError> {
    let bless = std::env::var_os(BLESS).is_some_and(|value| value == "1");
    check_in(&root.as_ref().join("golden"), example, message, bless)
}

/// Compares the message with its golden files in `folder`, or writes them if `bless` is true. For golden
/// files in another place than [`check`] uses, and for tests of golden tests, which cannot set an environment
/// variable for one test only.
///
/// ```
/// # use jobqueue::QueueMessage; use jobqueue_testing::golden; use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize, QueueMessage)]
/// # #[message(queue = "thumbnails", kind = "thumbnail")] struct Thumbnail { photo: String }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?; let folder = folder.path();
/// let example = Thumbnail { photo: "cat.png".into() };
/// assert!(golden::check_in(folder, "", &example, false).is_err());   // there is no file yet
/// golden::check_in(folder, "", &example, true)?;                     // writes it
/// golden::check_in(folder, "", &example, false)?;                    // unchanged
/// # Ok(()) }
/// ```
///
/// # Errors
/// See [`GoldenError`].
pub fn check_in<M: QueueMessage>(
    folder: &Path,
    example: &str,
    message: &M,
    bless: bool,
) -> Result<(), GoldenError> {
    let path = folder.join(file::name(M::KIND, M::VERSION, example));
    let payload = encode_message(message).map_err(GoldenError::Encode)?;
    let found = Golden::of(message, &payload)?;
    let pinned = Golden::read(&path)?;
    if !bless {
        let Some(pinned) = &pinned else { return Err(GoldenError::Missing { path }) };
        let (pinned, found) = (pinned.with_type_of(&found).comparable(), found.comparable());
        if pinned != found {
            return Err(GoldenError::Changed { path, differences: diff::lines(&pinned, &found) });
        }
    }
    // Checks readability before writing, so that blessing cannot hide that waiting messages have become
    // unreadable.
    check_readable::<M>(folder)?;
    round_trip(&path, message, &payload)?;
    // An unchanged file is not written again, because other tests may be reading it.
    let is_current = pinned.is_some_and(|pinned| pinned.comparable() == found.comparable());
    if bless && !is_current { found.write(&path) } else { Ok(()) }
}

/// Checks that a worker could still read every file that was written as `M` or a predecessor of it, and that
/// each former form has kept its queue and key.
fn check_readable<M: QueueMessage>(folder: &Path) -> Result<(), GoldenError> {
    for (path, golden) in file::all(folder)? {
        if !M::kinds().contains(&&*golden.kind) {
            if golden.is_of::<M>() {
                return Err(GoldenError::FormerKind { path, kind: golden.kind });
            }
        } else if golden.version <= M::VERSION {
            let payload = golden.payload_bytes(&path)?;
            let read = decode_any_version::<M>(Some(golden.version), Some(&golden.datacontenttype), &payload);
            let message = match read {
                Ok((_, message)) => message,
                Err(source) => return Err(GoldenError::Unreadable { path, source }),
            };
            // A file of the present form is compared by the test of its own example.
            let is_former = (&*golden.kind, golden.version) != (M::KIND, M::VERSION);
            if is_former && let Some(moved) = golden.moved_to(&message) {
                let differences = diff::lines(&golden.to_json(), &moved.to_json());
                return Err(GoldenError::Moved { path, differences });
            }
        }
    }
    Ok(())
}

/// Checks that decoding and encoding a message leaves it unchanged, that is, that both halves of serde agree.
fn round_trip<M: QueueMessage>(path: &Path, example: &M, payload: &[u8]) -> Result<(), GoldenError> {
    let unreadable = |source| GoldenError::Unreadable { path: path.to_owned(), source };
    let message = M::Codec::decode::<M>(payload).map_err(DecodeError::Codec).map_err(unreadable)?;
    let again = Golden::of(&message, &encode_message(&message).map_err(GoldenError::Encode)?)?;
    let (once, again) = (Golden::of(example, payload)?.comparable(), again.comparable());
    if once == again {
        return Ok(());
    }
    Err(GoldenError::RoundTrip { path: path.to_owned(), differences: diff::lines(&once, &again) })
}

/// The way in which a message type disagrees with its golden files. The text shows the differences, because
/// golden files contain examples and no user data.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GoldenError {
    /// There is no file yet.
    #[error("{} does not exist; run the test with {BLESS}=1 to create it, and commit it", path.display())]
    #[non_exhaustive]
    Missing {
        /// The path at which the file was expected.
        path: PathBuf,
    },
    /// The wire form, the queue or the key has changed.
    #[error(
        "the wire form differs from {}:\n{differences}\nWorkers of the present release may not read it. Undo the change, \
         or raise `version`, keep the old type and name it in `upgrade_from`. If the example itself was changed, \
         run the test with {BLESS}=1. Another queue or key needs care too: workers must read both queues until the old one is \
         empty, and a key decides order, shard and unique work",
        path.display()
    )]
    #[non_exhaustive]
    Changed {
        /// The golden file.
        path: PathBuf,
        /// The differences, one per line.
        differences: Differences,
    },
    /// Messages of an earlier form have another queue or key in this release.
    #[error(
        "{} has an earlier form, and the type now has another queue or key:\n{differences}\nMessages of that form may be waiting: workers \
         must read both queues until the old one is empty, and a key decides order, shard and unique work. Undo the change, or delete the \
         file if no such message can be waiting",
        path.display()
    )]
    #[non_exhaustive]
    Moved {
        /// The golden file.
        path: PathBuf,
        /// The differences, one per line.
        differences: Differences,
    },
    /// Messages of an earlier form can no longer be read.
    #[error(
        "{} cannot be read any more. Messages of that form may be waiting in queues: undo the change, or raise \
         `version`, keep the old type and name it in `upgrade_from`. Delete the file if no such message can be \
         waiting",
        path.display()
    )]
    #[non_exhaustive]
    Unreadable {
        /// The golden file.
        path: PathBuf,
        /// The reason why it cannot be read.
        source: DecodeError,
    },
    /// The type had another kind, and no longer reads messages of that kind.
    #[error(
        "{} is of this type under the kind `{kind}`, which it does not read any more. Messages of that kind may be waiting in \
         queues: add `alias = \"{kind}\"`, or delete the file if no such message can be waiting. If another type has the kind now, \
         run its test with {BLESS}=1 first",
        path.display()
    )]
    #[non_exhaustive]
    FormerKind {
        /// The golden file.
        path: PathBuf,
        /// The former kind.
        kind: String,
    },
    /// Decoding and encoding the example changes it.
    #[error("reading {} and writing it again changes it:\n{differences}\nMake `Serialize` and `Deserialize` agree", path.display())]
    #[non_exhaustive]
    RoundTrip {
        /// The golden file.
        path: PathBuf,
        /// The differences, one per line.
        differences: Differences,
    },
    /// The example cannot be sent.
    #[error("the example is not a message that could be sent")]
    Encode(#[source] EncodeError),
    /// The codec writes the example differently each time, as with a nonce, and the value that is compared in
    /// place of the payload cannot be written as JSON.
    #[error(
        "the codec writes the example differently each time, so its value is compared as JSON, and JSON cannot hold it: \
         use a map whose keys are strings or numbers, or test the codec and the type apart from each other"
    )]
    NotComparable(#[source] serde_json::Error),
    /// The file is not a golden file.
    #[error("{} is not a golden file; restore it, or delete it and run the test with {BLESS}=1: {problem}", path.display())]
    #[non_exhaustive]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The reason why the file is malformed.
        problem: String,
    },
    /// The file system reported an error.
    #[error("{} cannot be read or written", path.display())]
    #[non_exhaustive]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}

/// The differences between two wire forms, one line for each place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Differences(Vec<String>);

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl GoldenError {
    /// Returns the text of the error and of all its causes, because a failing test shows only one text.
    pub fn report(&self) -> String {
        let mut text = self.to_string();
        let mut next = self.source();
        while let Some(cause) = next {
            text.push_str("\ncaused by: ");
            text.push_str(&cause.to_string());
            next = cause.source();
        }
        text
    }
}
