//! Processes a request after the SDK's own pipeline has logged it.
//!
//! The SDK's log allows pop receipts and parts of shared access signatures, and its allow-list can only be
//! extended. Therefore a request contains no secret while it passes the log: the SDK's clients receive a
//! placeholder. The tail of the pipeline, which the SDK takes for its transport, adds the secrets
//! ([`attach`]), signs the request ([`sign`]) and speaks HTTP ([`exchange`]). In the answer, the tail renames
//! the header with a new receipt, so that the log does not recognise it.

// The SDK's trait elides the lifetime, and with an explicit one the macro generates another signature.
#![allow(elided_lifetimes_in_paths)]

mod attach;
mod exchange;
mod expected;
mod in_process;
pub(super) mod sign;

use std::sync::Arc;

use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{
    ClientOptions, Context, HttpClient, Request, RetryOptions, Transport, UserAgentOptions,
};
use url::Url;

use self::attach::AttachSecrets;
pub(super) use self::attach::{PLACEHOLDER, Receipt};
use self::exchange::Exchange;
pub(super) use self::exchange::{AnswerLimit, ExchangeError, RECEIPT, time_limit};
use self::in_process::InProcess;
use self::sign::SharedKeyPolicy;
use super::account::{Account, Credential};

/// Returns the SDK's options for clients of an endpoint of the account. Their requests end in `exchange`.
pub(super) fn client_options(account: &Account, endpoint: &Url, exchange: Arc<dyn Policy>) -> ClientOptions {
    let mut policies: Vec<Arc<dyn Policy>> = Vec::with_capacity(3);
    let sas = match &account.credential {
        Credential::Sas(sas) => Some(sas.clone()),
        _ => None,
    };
    policies.push(Arc::new(AttachSecrets::new(endpoint, sas)));
    if let Credential::SharedKey(key) = &account.credential {
        policies.push(Arc::new(SharedKeyPolicy::new(account.name.clone(), key.clone())));
    }
    policies.push(exchange);
    ClientOptions {
        // Each operation has its own rule for retries, which only the caller can apply.
        retry: RetryOptions::none(),
        transport: Some(Transport::with_policy(Arc::new(Tail(policies)))),
        user_agent: UserAgentOptions {
            // The SDK panics above 24 characters.
            application_id: Some("jobqueue".to_owned()),
        },
        ..ClientOptions::default()
    }
}

/// Returns the end of a pipeline: `in_process` if it is set, otherwise the network over `http`.
pub(super) fn exchange(http: reqwest::Client, in_process: Option<&Arc<dyn HttpClient>>) -> Arc<dyn Policy> {
    match in_process {
        Some(client) => Arc::new(InProcess(Arc::clone(client))),
        None => Arc::new(Exchange::new(http)),
    }
}

/// A sequence of policies that replaces the transport.
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
        // The SDK logs the request again with its answer, so the secrets are removed.
        let (method, url) = (request.method(), request.url().clone());
        let answer = first.send(ctx, request, rest).await;
        *request = Request::new(url, method);
        answer
    }
}
