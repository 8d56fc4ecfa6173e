//! Answers requests in this process instead of over HTTP, for tests and measurements without a service.

use std::sync::Arc;

use async_trait::async_trait;
use azure_core::http::headers::HeaderName;
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{AsyncRawResponse, Context, HttpClient, Request};

use super::exchange::{ExchangeError, RECEIPT, answer_limit};
use super::expected;

/// A policy that calls the program's own client. Its answers are checked like answers from the network.
#[derive(Debug)]
pub(super) struct InProcess(pub(super) Arc<dyn HttpClient>);

#[async_trait]
impl Policy for InProcess {
    async fn send(&self, ctx: &Context, request: &mut Request, _next: &[Arc<dyn Policy>]) -> PolicyResult {
        let answer = self.0.execute_request(request).await?;
        let (status, mut headers, body) = answer.deconstruct();
        expected::check_author(status.into(), &headers)?;
        let (limit, body) = (answer_limit(ctx), body.collect().await?);
        if status.is_success() && body.len() as u64 > limit {
            return Err(ExchangeError::TooLong { limit }.into());
        }
        expected::check(request, status.into(), &body)?;
        if let Some(receipt) = headers.remove(HeaderName::from_static("x-ms-popreceipt")) {
            headers.insert(RECEIPT, receipt);
        }
        Ok(AsyncRawResponse::from_bytes(status, headers, body))
    }
}
