//! Keeps secrets off the command line, where every user of the machine can read them.

use std::ffi::OsString;

use crate::exit::Failure;

/// The texts before a secret in a storage string, in lower case.
const MARKS: &[&str] = &["accountkey=", "sharedaccesssignature=", "sig=", "sharedaccesskey="];

pub(crate) fn has_secret(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    MARKS.iter().any(|mark| text.contains(mark)) || has_database_password(&text)
}

/// Returns whether a text in lower case contains a PostgreSQL connection string with a password.
fn has_database_password(text: &str) -> bool {
    let address = text.split_once("postgres://").or_else(|| text.split_once("postgresql://"));
    address.is_some_and(|(_, address)| {
        let user = address.rsplit_once('@').map(|(user, _)| user);
        user.is_some_and(|user| user.contains(':')) || address.contains("password=")
    })
}

/// Returns whether a text is a storage string, and not one that only mentions a key, such as an error.
fn is_storage_string(text: &str) -> bool {
    let text = text.trim_start().to_ascii_lowercase();
    let is_of_azure = |setting: &str| {
        let name = setting.split_once('=').map_or("", |(name, _)| name.trim());
        name.ends_with("endpoint") || name == "defaultendpointsprotocol" || name == "accountname"
    };
    let is_address = |scheme: &&str| text.starts_with(*scheme);
    ["http://", "https://", "postgres://", "postgresql://"].iter().any(is_address)
        || text.split(';').any(is_of_azure)
}

fn is_option(name: &str) -> bool {
    let bare = name.trim_start_matches('-').to_ascii_lowercase();
    name.starts_with("--") || bare == "storage" || bare == "jobqueue_storage"
}

/// Refuses a storage string with a secret, before anything could print it. It may be given in the place of
/// another argument.
pub(crate) fn refuse_in(arguments: &[OsString]) -> Result<(), Failure> {
    let mut is_storage = false;
    let has_any = arguments.iter().any(|argument| {
        let text: &str = &argument.to_string_lossy();
        // The value of an option, or of the variable in the wrong place. Headers and texts to search for may
        // have addresses behind names of their own.
        let (name, value) = text.split_once('=').filter(|(name, _)| is_option(name)).unwrap_or(("", text));
        let is_refused =
            is_storage || name == "--storage" || [text, value].into_iter().any(is_storage_string);
        is_storage = text == "--storage";
        is_refused && has_secret(text)
    });
    if !has_any {
        return Ok(());
    }
    Err(Failure::Usage(
        "an argument contains a key or a signature, which other users can see in the process list; set the \
         environment variable JOBQUEUE_STORAGE to the storage string, or name a context of the configuration \
         file with --context; then replace the key, which may be in the history of your shell"
            .to_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_signatures_are_found_in_any_case() {
        assert!(has_secret("DefaultEndpointsProtocol=https;accountKEY=abc"));
        assert!(has_secret("QueueEndpoint=x;SharedAccessSignature=sv=1"));
        assert!(has_secret("https://a.queue.core.windows.net?sv=1&sig=abc"));
        assert!(has_secret("postgres://app:secret@db/shop") && has_secret("PostgreSQL://app:a/b@db/shop"));
        assert!(has_secret("postgres://db/shop?user=app&password=secret"));
        assert!(!has_secret("postgres://app@db:5432/shop") && !has_secret("postgres://"));
        assert!(!has_secret("sqlite:jobs.db") && !has_secret("UseDevelopmentStorage=true"));
    }

    // A filter for an error that mentions a signature was refused.
    #[test]
    fn only_storage_strings_are_refused() {
        let refuses = |arguments: &[&str]| {
            refuse_in(&arguments.iter().map(OsString::from).collect::<Vec<_>>()).is_err()
        };
        for text in ["sig=1", "AccountKey=abc", "403 at /q?sig=abc", "no postgres://app:secret@db/shop"] {
            assert!(!refuses(&["dead", "purge", "mails", "--text", text]), "{text}");
            assert!(!refuses(&["dead", "purge", "mails", &format!("--text={text}")]), "{text}");
            assert!(refuses(&["queues", "--storage", text]), "{text}");
            assert!(refuses(&["queues", &format!("--storage={text}")]), "{text}");
        }
        for header in ["link=https://a.blob.core.windows.net/c?sv=1&sig=x", "dsn=postgres://app:secret@db/x"]
        {
            assert!(!refuses(&["send", "mails", "--header", header]), "{header}");
            assert!(!refuses(&["dead", "list", "mails", &format!("--text={header}")]), "{header}");
        }
        for text in [
            "https://a.queue.core.windows.net?sv=1&sig=abc",
            "AccountName=a;AccountKey=abc",
            "Endpoint=sb://a/;SharedAccessKeyName=n;SharedAccessKey=abc",
            "PostgreSQL://app:secret@db/shop",
        ] {
            for arguments in [["queue", "show", text], ["queues", "--context", text]] {
                assert!(refuses(&arguments), "{arguments:?}");
            }
            for name in ["--context", "-storage", "storage", "JOBQUEUE_STORAGE"] {
                assert!(refuses(&["queues", &format!("{name}={text}")]), "{name}={text}");
            }
        }
    }
}
