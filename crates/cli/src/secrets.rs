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

/// Refuses arguments with a secret, before anything could print them.
pub(crate) fn refuse_in(arguments: &[OsString]) -> Result<(), Failure> {
    if !arguments.iter().any(|argument| has_secret(&argument.to_string_lossy())) {
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
}
