//! Performs a single HTTP exchange: sends the request, and reads a limited number of bytes of the answer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use azure_core::error::ErrorKind;
use azure_core::http::headers::{HeaderName, Headers};
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{AsyncRawResponse, Body, Context, Method, Request};
use bytes::{Bytes, BytesMut};

use super::expected;

/// The maximum size of the answer to a call, in bytes; passed in the call's context.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct AnswerLimit(pub(in super::super) u64);

/// The maximum size of an answer, in bytes, if the call sets none; also the number of bytes read of an error.
const DEFAULT_ANSWER_LIMIT: u64 = 64 * 1024;

/// The part of a declared length for which memory is reserved in advance. Untouched memory costs little.
const MAX_RESERVED_BYTES: u64 = 4 * 1024 * 1024;

/// The header that carries a new receipt. The SDK's log does not allow this name.
pub(in super::super) const RECEIPT: HeaderName = HeaderName::from_static("x-jobqueue-receipt");

/// The maximum time without a byte: the service itself gives up after 30 seconds.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);

/// The lowest expected transfer rate, in bytes a second: 1 Mbit/s.
const MIN_BYTES_PER_SECOND: u64 = 128 * 1024;

/// Returns the time limit of a call that carries up to `bytes` bytes.
pub(in super::super) fn time_limit(bytes: u64) -> Duration {
    SILENCE_TIMEOUT + Duration::from_secs(bytes / MIN_BYTES_PER_SECOND)
}

/// A plain HTTP client: no redirects, no retries, no decompression.
#[derive(Debug)]
pub(super) struct Exchange {
    http: reqwest::Client,
}

impl Exchange {
    pub(super) fn new(http: reqwest::Client) -> Self {
        Self { http }
    }
}

#[async_trait]
impl Policy for Exchange {
    async fn send(&self, ctx: &Context, request: &mut Request, _next: &[Arc<dyn Policy>]) -> PolicyResult {
        let Body::Bytes(body) = request.body().clone() else {
            return Err(azure_core::Error::with_message(
                ErrorKind::Other,
                "streamed request bodies are not supported",
            ));
        };
        let mut outgoing = self.http.request(method(request.method()), request.url().clone());
        for (name, value) in request.headers().iter() {
            outgoing = outgoing.header(name.as_str(), value.as_str());
        }
        let limit = time_limit(body.len() as u64);
        let sent = tokio::time::timeout(limit, outgoing.body(body).send()).await;
        let mut answer = sent.map_err(|_| ExchangeError::Late)?.map_err(ExchangeError::from_sending)?;
        let status = answer.status().as_u16();
        let headers = text_headers(answer.headers());
        expected::check_author(status, &headers)?;
        let content = read(&mut answer, answer_limit(ctx), request.method() == Method::Head).await?;
        expected::check(request, status, &content)?;
        Ok(AsyncRawResponse::from_bytes(status.into(), headers, content))
    }
}

/// Returns the maximum size of an answer that reports success.
pub(super) fn answer_limit(ctx: &Context<'_>) -> u64 {
    ctx.value::<AnswerLimit>().map_or(DEFAULT_ANSWER_LIMIT, |limit| limit.0)
}

/// Reads the content of an answer. Of an error, reads only the beginning, because its meaning is in its
/// headers.
async fn read(answer: &mut reqwest::Response, limit: u64, is_head: bool) -> Result<Bytes, ExchangeError> {
    let is_success = answer.status().is_success();
    let limit = if is_success { limit } else { DEFAULT_ANSWER_LIMIT };
    let declared = answer.content_length().filter(|_| !is_head).unwrap_or_default();
    if is_success && declared > limit {
        return Err(ExchangeError::TooLong { limit });
    }
    // A declared length must not make this process reserve an arbitrary amount of memory. A usual amount is
    // reserved at once, so that the content is not copied as the buffer grows.
    let mut content = BytesMut::with_capacity(declared.min(limit).min(MAX_RESERVED_BYTES) as usize);
    loop {
        let piece = tokio::time::timeout(SILENCE_TIMEOUT, answer.chunk()).await;
        let piece = piece
            .map_err(|_| ExchangeError::Late)?
            .map_err(|error| ExchangeError::Lost(error.without_url()))?;
        match piece {
            Some(piece) if (content.len() + piece.len()) as u64 <= limit => content.extend_from_slice(&piece),
            Some(_) if is_success => return Err(ExchangeError::TooLong { limit }),
            _ => return Ok(content.freeze()),
        }
    }
}

/// Returns the headers that are text. The receipt is renamed. The range is removed, because there is only one
/// answer, and the SDK would plan more requests from it.
fn text_headers(headers: &reqwest::header::HeaderMap) -> Headers {
    let mut out = Headers::new();
    for (name, value) in headers {
        let Ok(value) = value.to_str() else { continue };
        match name.as_str() {
            "x-ms-popreceipt" => out.insert(RECEIPT, value.to_owned()),
            "content-range" => {}
            name => out.insert(name.to_owned(), value.to_owned()),
        }
    }
    out
}

fn method(method: Method) -> reqwest::Method {
    // All of the SDK's methods are HTTP methods.
    reqwest::Method::from_bytes(method.as_str().as_bytes()).unwrap_or(reqwest::Method::GET)
}

/// The reason for a missing answer. It contains no URL, which may contain a signature or a receipt.
#[derive(Debug)]
pub(in super::super) enum ExchangeError {
    /// No connection was made, so nothing was sent.
    NotConnected(reqwest::Error),
    /// The request may have arrived, but the answer did not.
    Lost(reqwest::Error),
    /// The answer did not arrive in time; the connection is still open.
    Late,
    /// The answer is longer than allowed; the connection was closed.
    TooLong {
        /// The limit in bytes.
        limit: u64,
    },
    /// Another server answered: a proxy, a gateway, or the server at a wrong address.
    OtherServer {
        /// The status of its answer.
        status: u16,
    },
    /// The answer reports success, but does not have the form of the service's answers.
    Unexpected(&'static str),
}

impl ExchangeError {
    fn from_sending(error: reqwest::Error) -> Self {
        let error = error.without_url();
        if error.is_connect() || error.is_builder() { Self::NotConnected(error) } else { Self::Lost(error) }
    }
}

impl fmt::Display for ExchangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotConnected(_) => f.write_str("no connection could be made"),
            Self::Lost(_) => f.write_str("the connection failed before the answer was complete"),
            Self::Late => f.write_str("nothing came for too long"),
            Self::TooLong { limit } => write!(f, "the answer has more than {limit} bytes"),
            Self::OtherServer { status } => write!(
                f,
                "the answer (status {status}) is not the storage's, since it has no x-ms-request-id: a proxy or gateway \
                 answered, or the endpoint is wrong"
            ),
            Self::Unexpected(problem) => write!(f, "the answer is not one of this operation: {problem}"),
        }
    }
}

impl std::error::Error for ExchangeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NotConnected(error) | Self::Lost(error) => Some(error),
            Self::Late | Self::TooLong { .. } | Self::OtherServer { .. } | Self::Unexpected(_) => None,
        }
    }
}

impl From<ExchangeError> for azure_core::Error {
    fn from(error: ExchangeError) -> Self {
        let kind = match error {
            ExchangeError::NotConnected(_) => ErrorKind::Connection,
            _ => ErrorKind::Io,
        };
        Self::new(kind, error)
    }
}
