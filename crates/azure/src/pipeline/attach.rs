//! Adds the secrets to a request that the SDK must not log.

use std::sync::Arc;

use async_trait::async_trait;
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{Context, Request};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use url::Url;

use jobqueue_storage::PopReceipt;
use jobqueue_storage::secret::Secret;

/// The placeholder that the SDK's clients get instead of a pop receipt.
pub(in super::super) const PLACEHOLDER: &str = "receipt";

/// The receipt of a call. It bypasses the SDK's log in the context of the call.
pub(in super::super) struct Receipt(pub(in super::super) PopReceipt);

/// All characters except the unreserved ones of RFC 3986, so that no reader takes a `+` for a space.
const ENCODED_IN_VALUES: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A policy that adds the receipt and the shared access signature.
#[derive(Debug)]
pub(super) struct AttachSecrets {
    sas: Option<Secret<String>>,
    origin: url::Origin,
}

impl AttachSecrets {
    pub(super) fn new(endpoint: &Url, sas: Option<Secret<String>>) -> Self {
        Self { sas, origin: endpoint.origin() }
    }
}

#[async_trait]
impl Policy for AttachSecrets {
    async fn send(&self, ctx: &Context, request: &mut Request, next: &[Arc<dyn Policy>]) -> PolicyResult {
        // A request only ever goes to the configured host, whatever an answer contained.
        if request.url().origin() != self.origin {
            return Err(azure_core::Error::with_message(
                azure_core::error::ErrorKind::Other,
                "the request is for another host than the endpoint",
            ));
        }
        let query = attached(
            request.url().query().unwrap_or_default(),
            ctx.value::<Receipt>().map(|receipt| receipt.0.expose()),
            self.sas.as_ref().map(|sas| sas.expose().as_str()),
        );
        request.url_mut().set_query(Some(&query).filter(|query| !query.is_empty()).map(String::as_str));
        next[0].send(ctx, request, &next[1..]).await
    }
}

/// Returns the query with uniformly encoded values, the placeholder replaced by the receipt, and the
/// signature at its end.
fn attached(query: &str, receipt: Option<&str>, sas: Option<&str>) -> String {
    let mut out = String::with_capacity(query.len() + receipt.map_or(0, str::len) + sas.map_or(0, str::len));
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        // The SDK writes spaces as `+`.
        let value = value.replace('+', "%20");
        let decoded = percent_decode_str(&value).decode_utf8_lossy();
        let value = match receipt {
            Some(receipt) if name == "popreceipt" => receipt,
            _ => &decoded,
        };
        push(&mut out, &format!("{name}={}", utf8_percent_encode(value, ENCODED_IN_VALUES)));
    }
    if let Some(sas) = sas {
        push(&mut out, sas);
    }
    out
}

fn push(out: &mut String, pair: &str) {
    if !out.is_empty() {
        out.push('&');
    }
    out.push_str(pair);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The service reads the same bytes, whatever characters a receipt contains.
    #[test]
    fn receipts_survive_the_query_string() {
        let receipt = "AgAAAAMA+/=%20 &é?#";
        let query = attached("popreceipt=receipt&visibilitytimeout=30", Some(receipt), None);
        assert_eq!(query, "popreceipt=AgAAAAMA%2B%2F%3D%2520%20%26%C3%A9%3F%23&visibilitytimeout=30");
        let read: Vec<_> = url::form_urlencoded::parse(query.as_bytes()).collect();
        assert_eq!(read[0].1, receipt);
    }

    #[test]
    fn signature_is_appended_unchanged() {
        assert_eq!(attached("", None, Some("sv=1&sig=a%2Bb")), "sv=1&sig=a%2Bb");
        assert_eq!(attached("comp=list&prefix=a+b", None, Some("sig=x")), "comp=list&prefix=a%20b&sig=x");
    }
}
