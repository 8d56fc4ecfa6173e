//! The signing policy for an account key, which a program must bring along because the SDK has none.
//!
//! It does what the requests of the bare loop need, and is not a complete implementation. The library's own
//! policy is not used: a loop that is measured against the library must not run its code.

// The SDK's trait has the lifetime elided, and the macro makes another signature of one that is written out.
#![allow(elided_lifetimes_in_paths)]

use std::sync::Arc;

use async_trait::async_trait;
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{Context, Request};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use jobqueue_test_support::azurite::{ACCOUNT, KEY};
use sha2::Sha256;

/// Headers whose values stand in the signed text, in this order; all others of the list are never sent by the
/// loop.
const SIGNED: [&str; 11] = [
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

#[derive(Debug)]
pub(crate) struct SharedKey {
    key: Vec<u8>,
}

impl SharedKey {
    pub(crate) fn of_azurite() -> Self {
        Self { key: BASE64.decode(KEY).unwrap_or_default() }
    }

    fn authorization(&self, request: &Request) -> String {
        let header = |wanted: &str| {
            let mut headers = request.headers().iter();
            let found = headers.find(|(name, _)| name.as_str().eq_ignore_ascii_case(wanted));
            found.map(|(_, value)| value.as_str()).unwrap_or_default()
        };
        let mut text = request.method().as_str().to_owned();
        for name in SIGNED {
            text.push('\n');
            let length = request.body().len().unwrap_or_default();
            if name == "content-length" && length > 0 {
                text += &length.to_string();
            } else if name != "content-length" {
                text += header(name);
            }
        }
        let mut ours: Vec<_> =
            request.headers().iter().filter(|(name, _)| name.as_str().starts_with("x-ms-")).collect();
        ours.sort_by_key(|(name, _)| name.as_str());
        text.push('\n');
        for (name, value) in ours {
            text += &format!("{}:{}\n", name.as_str(), value.as_str());
        }
        text += &format!("/{ACCOUNT}{}", request.url().path());
        let mut pairs: Vec<_> = request.url().query_pairs().collect();
        pairs.sort();
        for (name, value) in pairs {
            text += &format!("\n{name}:{value}");
        }
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.key) else { return String::new() };
        mac.update(text.as_bytes());
        format!("SharedKey {ACCOUNT}:{}", BASE64.encode(mac.finalize().into_bytes()))
    }
}

#[async_trait]
impl Policy for SharedKey {
    async fn send(&self, ctx: &Context, request: &mut Request, next: &[Arc<dyn Policy>]) -> PolicyResult {
        let now = jiff::fmt::rfc2822::DateTimePrinter::new()
            .timestamp_to_rfc9110_string(&jiff::Timestamp::now())
            .map_err(|error| azure_core::Error::new(azure_core::error::ErrorKind::Other, error))?;
        request.insert_header("x-ms-date", now);
        let authorization = self.authorization(request);
        request.insert_header("authorization", authorization);
        next[0].send(ctx, request, &next[1..]).await
    }
}
