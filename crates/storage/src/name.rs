//! Names of queues, containers and blobs, by the rules of Azure Storage.
//!
//! Every storage accepts exactly these names, so that a system can move from one storage to another.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The suffix of the names of dead-letter queues.
pub const DEAD_LETTER_SUFFIX: &str = "-poison";

/// The maximum length of a name.
const MAX_LENGTH: usize = 63;

/// The maximum length of the name of a queue with a dead-letter queue.
const MAX_LENGTH_WITH_DEAD_LETTERS: usize = MAX_LENGTH - DEAD_LETTER_SUFFIX.len();

/// The name of a queue: 3–63 characters, lower-case letters, digits and single dashes, beginning and
/// ending with a letter or digit ([naming rules]).
///
/// A queue with a dead-letter queue may use at most 56 characters, so that `<queue>-poison` is a valid name
/// too; [`QueueName::dead_letter`] checks that.
///
/// [naming rules]: https://learn.microsoft.com/rest/api/storageservices/naming-queues-and-metadata
///
/// ```
/// use jobqueue::QueueName;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mails = QueueName::new("mails")?;
/// assert!(mails == "mails" && mails != "orders");
/// assert_eq!(mails.dead_letter()?, "mails-poison");
/// assert!(QueueName::new("Mails").is_err());
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueName(Arc<str>);

impl QueueName {
    /// Returns the name of this queue's dead-letter queue: `<queue>-poison`.
    ///
    /// # Errors
    /// [`NameError`] when the name is longer than 56 characters.
    pub fn dead_letter(&self) -> Result<Self, NameError> {
        Self::new(format!("{}{DEAD_LETTER_SUFFIX}", self.0)).map_err(|_| {
            let problem = format!(
                "has {} characters; choose one of at most {MAX_LENGTH_WITH_DEAD_LETTERS}, so that its dead-letter queue has a name too, which ends with {DEAD_LETTER_SUFFIX}",
                self.0.len()
            );
            NameError::new("queue", &self.0, problem)
        })
    }

    /// Returns whether the name is the name of a dead-letter queue.
    #[inline]
    pub fn is_dead_letter(&self) -> bool {
        self.0.ends_with(DEAD_LETTER_SUFFIX)
    }
}

impl PartialEq<str> for QueueName {
    fn eq(&self, text: &str) -> bool {
        *self.0 == *text
    }
}

impl PartialEq<&str> for QueueName {
    fn eq(&self, text: &&str) -> bool {
        *self.0 == **text
    }
}

/// Shares the text of the name.
impl From<&QueueName> for Arc<str> {
    fn from(name: &QueueName) -> Self {
        Self::clone(&name.0)
    }
}

/// The name of a blob container: the same rules as for [`QueueName`].
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContainerName(Arc<str>);

/// The address of a blob: its container and its name within it.
///
/// The name has 1–1,024 characters: ASCII letters, digits and `-_.=/`. Single slashes separate segments; no
/// segment is empty, `.` or `..`, and none ends with a dot. The rule is narrower than Azure's, so that no
/// proxy, URL normaliser or file system on the way can change the meaning of a name.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlobName {
    container: ContainerName,
    name: Arc<str>,
}

impl BlobName {
    /// Checks `name` against the rules.
    ///
    /// # Errors
    /// [`NameError`], which names the broken rule and the part of the name.
    pub fn new(container: ContainerName, name: impl AsRef<str>) -> Result<Self, NameError> {
        let name = name.as_ref();
        check_blob_name(name)?;
        Ok(Self { container, name: name.into() })
    }

    /// Returns the container of the blob.
    pub fn container(&self) -> &ContainerName {
        &self.container
    }

    /// Returns the name within the container.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// The error of a name that breaks the rules; the text names the rule and the offending part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} name {name:?} {problem}")]
pub struct NameError {
    what: &'static str,
    name: String,
    problem: String,
}

impl NameError {
    fn new(what: &'static str, name: &str, problem: impl Into<String>) -> Self {
        // The name is cut, so that a hostile name cannot fill the log.
        let name = name.chars().take(80).collect();
        Self { what, name, problem: problem.into() }
    }
}

fn check_dns_name(what: &'static str, name: &str) -> Result<(), NameError> {
    let fail = |problem: String| Err(NameError::new(what, name, problem));
    let length = name.chars().count();
    if !(3..=MAX_LENGTH).contains(&length) {
        return fail(format!("has {length} characters; 3 to {MAX_LENGTH} are allowed"));
    }
    if let Some(bad) = name.chars().find(|c| !matches!(c, 'a'..='z' | '0'..='9' | '-')) {
        return fail(format!("contains {bad:?}; use lower-case letters, digits and dashes"));
    }
    if name.starts_with('-') || name.ends_with('-') {
        return fail("begins or ends with a dash; use a letter or digit there".to_owned());
    }
    if name.contains("--") {
        return fail("contains two dashes in a row; use single ones".to_owned());
    }
    Ok(())
}

fn check_blob_name(name: &str) -> Result<(), NameError> {
    let fail = |problem: String| Err(NameError::new("blob", name, problem));
    if name.is_empty() || name.len() > 1024 {
        return fail(format!("has {} characters; 1 to 1,024 are allowed", name.len()));
    }
    let allowed = |c: &char| c.is_ascii_alphanumeric() || "-_.=/".contains(*c);
    if let Some(bad) = name.chars().find(|c| !allowed(c)) {
        return fail(format!("contains {bad:?}; use ASCII letters, digits and -_.=/"));
    }
    if name.split('/').any(|segment| segment.is_empty() || segment.ends_with('.')) {
        return fail("has an empty segment or one that ends with a dot".to_owned());
    }
    Ok(())
}

macro_rules! dns_name {
    ($type:ident, $what:literal) => {
        impl $type {
            /// Checks `name` against the rules.
            ///
            /// # Errors
            /// [`NameError`], which names the broken rule and the part of the name.
            pub fn new(name: impl AsRef<str>) -> Result<Self, NameError> {
                let name = name.as_ref();
                check_dns_name($what, name)?;
                Ok(Self(name.into()))
            }

            /// Returns the name as text.
            #[inline]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
        impl FromStr for $type {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::new(text)
            }
        }
    };
}
dns_name!(QueueName, "queue");
dns_name!(ContainerName, "container");

impl fmt::Display for BlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.container, self.name)
    }
}

impl fmt::Debug for BlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_names_follow_azures_rules() {
        for good in ["abc", "a-b-c", "0queue9", &"q".repeat(63)] {
            assert!(QueueName::new(good).is_ok(), "{good}");
        }
        let long = "q".repeat(64);
        for bad in ["", "ab", &long, "Abc", "a_b", "-abc", "abc-", "a--b", "a|bc", "äbc", "a.b"] {
            assert!(QueueName::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn queue_name_equals_its_text() {
        let (name, text) = (QueueName::new("mails").unwrap(), "mails".to_owned());
        assert!(name == "mails" && name == *text && name == text.as_str());
        assert!(name != "orders" && name != *"mail");
    }

    #[test]
    fn dead_letter_queue_needs_room_for_its_suffix() {
        assert!(QueueName::new("q".repeat(56)).unwrap().dead_letter().is_ok());
        let error = QueueName::new("q".repeat(57)).unwrap().dead_letter().unwrap_err().to_string();
        assert!(error.contains("has 57 characters; choose one of at most 56"), "{error}");
    }

    #[test]
    fn blob_names_cannot_express_paths_or_urls() {
        let container = ContainerName::new("abc").unwrap();
        let try_name = |name: &str| BlobName::new(container.clone(), name);
        for good in ["a", "20261120/queue/0190", "a=b_c.d"] {
            assert!(try_name(good).is_ok(), "{good}");
        }
        let long = "a".repeat(1025);
        for bad in ["", &long, "../x", "a/../b", "a//b", "/a", "a/", "a?sig=x", "a%2e", "a\\b", "a#b", "a."] {
            assert!(try_name(bad).is_err(), "{bad}");
        }
    }
}
