//! Implements shared-key authorisation: an HMAC over parts of a request.
//!
//! The SDK has no such policy. The rules are documented in [Authorize with Shared Key]; the tests compare
//! with signatures that Microsoft's Python SDK made.
//!
//! [Authorize with Shared Key]: https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use azure_core::http::headers::Headers;
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{Context, Request};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use sha2::Sha256;
use url::Url;

use jobqueue_storage::secret::Secret;

/// Headers whose values are in the signed text, in this order.
const SIGNED_HEADERS: [&str; 11] = [
    "content-encoding",
    "content-language",
    "content-length",
    "content-md5",
    "content-type",
    "date",
    "if-modified-since",
    "if-match",
    "if-none-match",
    "if-unmodified-since",
    "range",
];

/// A policy that signs each request with the account's key. It must be the last to change a request.
#[derive(Debug)]
pub(super) struct SharedKeyPolicy {
    account: String,
    key: Secret<Vec<u8>>,
}

impl SharedKeyPolicy {
    pub(super) fn new(account: String, key: Secret<Vec<u8>>) -> Self {
        Self { account, key }
    }
}

#[async_trait]
impl Policy for SharedKeyPolicy {
    async fn send(&self, ctx: &Context, request: &mut Request, next: &[Arc<dyn Policy>]) -> PolicyResult {
        let date = rfc2822::DateTimePrinter::new()
            .timestamp_to_rfc9110_string(&Timestamp::now())
            .map_err(|error| azure_core::Error::new(azure_core::error::ErrorKind::Other, error))?;
        request.insert_header("x-ms-date", date);
        let length = request.body().len().unwrap_or_default();
        let text = string_to_sign(
            request.method().as_str(),
            request.url(),
            &lower_cased(request.headers()),
            length,
            &self.account,
        );
        let signature = signature(self.key.expose(), &text);
        request.insert_header("authorization", format!("SharedKey {}:{signature}", self.account));
        next[0].send(ctx, request, &next[1..]).await
    }
}

/// Returns the HMAC-SHA256 of `text` in base64.
pub(in super::super) fn signature(key: &[u8], text: &str) -> String {
    // HMAC accepts keys of any length; the error type belongs to block ciphers.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return String::new() };
    mac.update(text.as_bytes());
    BASE64.encode(mac.finalize().into_bytes())
}

fn lower_cased(headers: &Headers) -> BTreeMap<String, String> {
    headers
        .iter()
        .map(|(name, value)| (name.as_str().to_ascii_lowercase(), value.as_str().to_owned()))
        .collect()
}

/// Returns the text to sign. `headers` have lower-case names; `length` is the length of the body.
fn string_to_sign(
    method: &str,
    url: &Url,
    headers: &BTreeMap<String, String>,
    length: u64,
    account: &str,
) -> String {
    let mut text = method.to_owned();
    text.push('\n');
    for name in SIGNED_HEADERS {
        match name {
            // Since version 2015-02-21 an empty body has an empty length, not "0".
            "content-length" if length == 0 => {}
            "content-length" => text.push_str(&length.to_string()),
            // x-ms-date is signed instead.
            "date" if headers.contains_key("x-ms-date") => {}
            _ => text.push_str(headers.get(name).map_or("", |value| value.trim())),
        }
        text.push('\n');
    }
    push_headers(&mut text, headers);
    push_resource(&mut text, url, account);
    text
}

/// Adds all `x-ms-` headers, one per line, in the service's order.
fn push_headers(text: &mut String, headers: &BTreeMap<String, String>) {
    let mut ours: Vec<_> = headers.iter().filter(|(name, _)| name.starts_with("x-ms-")).collect();
    ours.sort_by_key(|(name, _)| collation_key(name));
    for (name, value) in ours {
        text.push_str(name);
        text.push(':');
        text.push_str(value.trim());
        text.push('\n');
    }
}

/// Returns the key by which the service sorts names: linguistically, not by bytes, so that `_` precedes
/// digits.
fn collation_key(name: &str) -> Vec<u8> {
    name.bytes().map(|byte| if byte == b'_' { b'.' } else { byte }).collect()
}

/// Adds `/ACCOUNT` and the path as sent (a path-style address repeats the account at its start), then the
/// decoded query, sorted by lower-case name.
fn push_resource(text: &mut String, url: &Url, account: &str) {
    text.push('/');
    text.push_str(account);
    text.push_str(url.path());
    let mut parameters = BTreeMap::<String, Vec<String>>::new();
    for (name, value) in url.query_pairs() {
        parameters.entry(name.to_lowercase()).or_default().push(value.into_owned());
    }
    for (name, mut values) in parameters {
        values.sort();
        text.push('\n');
        text.push_str(&name);
        text.push(':');
        text.push_str(&values.join(","));
    }
}

#[cfg(test)]
#[path = "sign_tests.rs"]
mod tests;
