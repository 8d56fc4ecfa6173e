//! Processes a request after the SDK's own pipeline has logged it.
//!
//! The SDK's log allows pop receipts and parts of shared access signatures, and its allow-list can only be extended.
//! Therefore a request contains no secret while it passes the log: the SDK's clients get a placeholder. The tail of the
//! pipeline, which the SDK takes for its transport, adds the secrets ([`attach`]), signs ([`sign`]) and speaks HTTP
//! ([`exchange`]). In the answer the tail renames the header with a new receipt, so that the log does not recognise it.

// The SDK's trait elides the lifetime, and the macro makes another signature of one that is written out.
#![allow(elided_lifetimes_in_paths)]

mod attach;
mod exchange;
mod expected;
#[cfg(feature = "testing")]
mod in_process;
pub(super) mod sign;

use std::sync::Arc;

use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{ClientOptions, Context, Request, RetryOptions, Transport, UserAgentOptions};
use url::Url;

use self::attach::AttachSecrets;
pub(super) use self::attach::{PLACEHOLDER, Receipt};
use self::exchange::Exchange;
pub(super) use self::exchange::{AnswerLimit, ExchangeError, RECEIPT};
pub(super) use self::expected::is_of_the_service;
use self::sign::SharedKeyPolicy;
use super::account::Credential;
use super::connection::Setup;

/// Returns the SDK's options for clients that use `endpoint` of the account through `http`.
pub(super) fn client_options(setup: &Setup, endpoint: &Url, http: &reqwest::Client) -> ClientOptions {
    let account = &setup.account;
    let mut policies: Vec<Arc<dyn Policy>> = Vec::with_capacity(3);
    let sas = match &account.credential {
        Credential::Sas(sas) => Some(sas.clone()),
        _ => None,
    };
    policies.push(Arc::new(AttachSecrets::new(endpoint, sas)));
    if let Credential::SharedKey(key) = &account.credential {
        policies.push(Arc::new(SharedKeyPolicy::new(account.name.clone(), key.clone())));
    }
    policies.push(exchange(setup, http));
    ClientOptions {
        // Each operation has its own rule for resending, which only the caller can apply.
        retry: RetryOptions::none(),
        transport: Some(Transport::with_policy(Arc::new(Tail(policies)))),
        user_agent: UserAgentOptions {
            // The SDK panics beyond 24 characters.
            application_id: Some("jobqueue".to_owned()),
        },
        ..ClientOptions::default()
    }
}

fn exchange(setup: &Setup, http: &reqwest::Client) -> Arc<dyn Policy> {
    #[cfg(feature = "testing")]
    if let Some(client) = &setup.in_process {
        return Arc::new(in_process::InProcess(Arc::clone(client)));
    }
    // Known to tests only.
    let _ = setup;
    Arc::new(Exchange::new(http.clone()))
}

/// A sequence of policies in place of the transport.
#[derive(Debug)]
struct Tail(Vec<Arc<dyn Policy>>);

#[async_trait::async_trait]
impl Policy for Tail {
    async fn send(&self, ctx: &Context, request: &mut Request, _next: &[Arc<dyn Policy>]) -> PolicyResult {
        // `client_options` always adds an exchange to the tail.
        let (first, rest) = self.0.split_first().ok_or_else(|| {
            azure_core::Error::with_message(
                azure_core::error::ErrorKind::Other,
                "the pipeline has no transport",
            )
        })?;
        // The SDK logs the request once more beside its answer.
        let (method, url) = (request.method(), request.url().clone());
        let answer = first.send(ctx, request, rest).await;
        *request = Request::new(url, method);
        answer
    }
}
