//! The storage account, its addresses and its credential.

use url::Url;

use jobqueue_entra::TokenSource;
use jobqueue_storage::secret::{self, Secret};

/// A storage account. `Debug` shows no secret.
#[derive(Debug, Clone)]
pub(super) struct Account {
    /// The account name, for descriptions and signatures.
    pub(super) name: String,
    /// The address of the queues, without a trailing slash.
    pub(super) queues: Url,
    pub(super) blobs: Url,
    /// The credential for all requests.
    pub(super) credential: Credential,
}

#[derive(Debug, Clone)]
pub(super) enum Credential {
    /// The account key, which grants everything and signs each request.
    SharedKey(Secret<Vec<u8>>),
    /// A shared access signature: a query string that is added to each request.
    Sas(Secret<String>),
    /// Tokens of Entra ID.
    Token(TokenSource),
}

/// The reason why an address cannot be used.
pub(super) type Problem = String;

/// Parses an endpoint. `part` names it in the reason, which never repeats the text, because that may contain
/// a secret.
pub(super) fn endpoint(part: &str, text: &str) -> Result<Url, Problem> {
    // A URL may have semicolons, and the description of the storage shows the host or the end of the path.
    if text.contains(';') {
        return Err(format!("{part} has a semicolon; no setting can follow an address"));
    }
    let mut url = Url::parse(text.trim()).map_err(|error| format!("{part} is not a URL ({error})"))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(format!("{part} holds a user name or password; remove it"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(format!(
            "{part} has a query or fragment; give a shared access signature as SharedAccessSignature=… in a connection string"
        ));
    }
    match url.scheme() {
        "https" => {}
        "http" if is_loopback(&url) => {}
        "http" => {
            return Err(format!(
                "{part} is plain http, which is allowed to this machine (loopback) only; use https"
            ));
        }
        _ => return Err(format!("{part} must begin with https://")),
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err(format!("{part} names no host"));
    }
    let path = url.path().trim_end_matches('/').to_owned();
    url.set_path(&path);
    Ok(url)
}

/// Returns whether the host is this machine, so that no request leaves it. The emulator has a subdomain of
/// `localhost` for each account.
pub(super) fn is_loopback(url: &Url) -> bool {
    url.host_str().is_some_and(|host| secret::is_loopback(host) || host.ends_with(".localhost"))
}

/// Returns the sibling endpoint: `ACCOUNT.queue.…` ↔ `ACCOUNT.blob.…`; `None` if the host names neither
/// service.
pub(super) fn sibling(url: &Url, from: &str, to: &str) -> Option<Url> {
    let host = url.host_str()?;
    let (head, tail) = host.split_once(&format!(".{from}."))?;
    let mut sibling = url.clone();
    sibling.set_host(Some(&format!("{head}.{to}.{tail}"))).ok()?;
    Some(sibling)
}

/// Returns the account name in an endpoint: the last path segment of a path-style address, otherwise the
/// first label of the host.
pub(super) fn account_name(url: &Url) -> Option<String> {
    let from_path =
        url.path_segments().and_then(|mut parts| parts.next_back()).filter(|part| !part.is_empty());
    match (from_path, url.host()) {
        (Some(name), _) => Some(name.to_owned()),
        (None, Some(url::Host::Domain(host))) => host.split('.').next().map(str::to_owned),
        (None, _) => None,
    }
}

/// Checks an account name before it becomes part of an address.
pub(super) fn check_name(name: &str) -> Result<(), Problem> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > 63 || !name.chars().all(allowed) {
        return Err("AccountName must have 3 to 24 lower-case letters and digits".to_owned());
    }
    Ok(())
}
