//! Translates the service's failures into the port's errors: by `x-ms-error-code` first, by status second.

use std::fmt;
use std::time::{Duration, SystemTime};

use azure_core::error::ErrorKind;
use azure_core::http::headers::{HeaderName, Headers};
use azure_core::http::{RawResponse, StatusCode};

use super::call::Call;
use super::convert::http_date;
use super::pipeline::ExchangeError;
use jobqueue_storage::{StoreError, StoreErrorKind};

/// The greatest clock difference at which the service accepts signatures.
const MAX_SKEW: Duration = Duration::from_secs(15 * 60);

/// The role that allows all operations on queues.
pub(super) const QUEUES_ROLE: &str = "Storage Queue Data Contributor";
/// The role that allows all operations on blobs.
pub(super) const BLOBS_ROLE: &str = "Storage Blob Data Contributor";

/// Converts the SDK's error of `call`. The SDK's own text is dropped where it may contain a URL or a body.
pub(super) fn from_sdk(call: Call<'_>, error: &azure_core::Error) -> StoreError {
    if let Some(exchange) = exchange_error(error) {
        return from_exchange(call, exchange);
    }
    match error.kind() {
        ErrorKind::HttpResponse { status, raw_response, .. } => {
            from_answer(call, *status, raw_response.as_deref())
        }
        ErrorKind::Credential => call
            .error(StoreErrorKind::Unauthorized)
            .with_detail(format!("the credential returned no token: {error}")),
        // Without a token, nothing was sent. The adapter's own connections fail with an `ExchangeError`.
        ErrorKind::Io => call
            .error(StoreErrorKind::Unavailable)
            .with_detail(format!("the credential returned no token: {error}")),
        ErrorKind::DataConversion => {
            call.unreadable("the answer does not have the form of this operation's answers")
        }
        // The SDK refused the call, or the pipeline failed, before anything was sent.
        _ => call
            .error(StoreErrorKind::InvalidInput)
            .with_detail("the SDK sent no request: check the endpoint"),
    }
}

fn exchange_error(error: &azure_core::Error) -> Option<&ExchangeError> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<ExchangeError>() {
            return Some(found);
        }
        // The SDK's error exposes its outermost cause as a `source` of another type.
        if let Some(found) = error.downcast_ref::<azure_core::Error>().and_then(|e| e.downcast_ref()) {
            return Some(found);
        }
        next = error.source();
    }
    None
}

fn from_exchange(call: Call<'_>, error: &ExchangeError) -> StoreError {
    let (kind, ambiguous) = match error {
        ExchangeError::NotConnected(_) => (StoreErrorKind::Unavailable, false),
        // Even if another server answered, the service may have applied the request.
        ExchangeError::Lost(_) | ExchangeError::OtherServer { .. } => {
            (StoreErrorKind::Unavailable, call.changes())
        }
        ExchangeError::Late => (StoreErrorKind::Timeout, call.changes()),
        // The content is longer than the call accepts.
        ExchangeError::TooLong { .. } if call.content.is_some() && !call.changes() => {
            (StoreErrorKind::TooLarge, false)
        }
        ExchangeError::TooLong { .. } | ExchangeError::Unexpected(_) => {
            (StoreErrorKind::Protocol, call.changes())
        }
    };
    call.error(kind).with_detail(joined_causes(error)).with_ambiguous(ambiguous)
}

/// Returns the causes as a text, because the cause itself belongs to the SDK and cannot be kept.
fn joined_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let reason = error.to_string();
        if !text.ends_with(&reason) {
            text.push_str(": ");
            text.push_str(&reason);
        }
        next = error.source();
    }
    text.chars().take(400).collect()
}

fn from_answer(call: Call<'_>, status: StatusCode, answer: Option<&RawResponse>) -> StoreError {
    let Some(headers) = answer.map(RawResponse::headers) else {
        return call.unreadable(format!("status {}, without headers", u16::from(status)));
    };
    let code = headers.get_optional_str(&HeaderName::from_static("x-ms-error-code")).map(identifier_chars);
    let status = u16::from(status);
    let kind = code.as_deref().and_then(by_code).unwrap_or_else(|| by_status(status));
    let mut detail = match &code {
        Some(code) => format!("{code}, status {status}"),
        None => format!("status {status}"),
    };
    if let Some(hint) = hint(call, kind, code.as_deref(), skew(headers)) {
        detail.push_str("; ");
        detail.push_str(&hint);
    }
    let request = headers.get_optional_str(&HeaderName::from_static("x-ms-request-id")).map(identifier_chars);
    let mut error = call
        .error(kind)
        .with_detail(detail)
        // Only a refusal proves that nothing was changed. A gateway may pass on a success under another
        // status.
        .with_ambiguous(!(400..500).contains(&status) && call.changes())
        .with_retry_after(retry_after(headers))
        .with_answered_at(date(headers));
    if let Some(id) = request {
        error = error.with_source(RequestId(id));
    }
    error
}

/// The service's id of the request, for the service's operators.
#[derive(Debug)]
struct RequestId(String);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the service's request id is {}", self.0)
    }
}

impl std::error::Error for RequestId {}

/// Returns the characters of a code or an id that are valid in an identifier; others are not repeated.
fn identifier_chars(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(80).collect()
}

/// Returns the error kind for a code of the service. Codes that only repeat the status are left to
/// [`by_status`].
pub(super) fn by_code(code: &str) -> Option<StoreErrorKind> {
    use StoreErrorKind as K;
    Some(match code {
        "QueueNotFound" => K::QueueNotFound,
        "QueueAlreadyExists" => K::QueueAlreadyExists,
        "QueueBeingDeleted" => K::QueueBeingDeleted,
        "QueueDisabled" => K::QueueDisabled,
        "MessageNotFound" => K::MessageNotFound,
        "PopReceiptMismatch" => K::PopReceiptMismatch,
        "MessageTooLarge" | "RequestBodyTooLarge" => K::TooLarge,
        "ContainerNotFound" => K::ContainerNotFound,
        "ContainerBeingDeleted" => K::ContainerBeingDeleted,
        "BlobNotFound" => K::BlobNotFound,
        "BlobAlreadyExists" => K::BlobAlreadyExists,
        "ConditionNotMet" | "TargetConditionNotMet" => K::ConditionNotMet,
        "LeaseAlreadyPresent" | "LeaseIsBreakingAndCannotBeAcquired" => K::LeaseAlreadyPresent,
        "LeaseIdMismatchWithLeaseOperation" | "LeaseIdMismatchWithBlobOperation" => K::LeaseIdMismatch,
        "LeaseIdMissing" => K::LeaseIdMissing,
        "LeaseNotPresentWithLeaseOperation" | "LeaseNotPresentWithBlobOperation" | "LeaseLost" => {
            K::LeaseNotPresent
        }
        "LeaseIsBrokenAndCannotBeRenewed" | "LeaseIsBreakingAndCannotBeChanged" | "LeaseAlreadyBroken" => {
            K::LeaseBroken
        }
        "ServerBusy" | "TooManyRequests" => K::Throttled,
        "OperationTimedOut" => K::Timeout,
        "InternalError" => K::Unavailable,
        "AuthenticationFailed"
        | "AuthorizationFailure"
        | "AuthorizationPermissionMismatch"
        | "AuthorizationProtocolMismatch"
        | "AuthorizationResourceTypeMismatch"
        | "AuthorizationServiceMismatch"
        | "AuthorizationSourceIPMismatch"
        | "AccountIsDisabled"
        | "InsufficientAccountPermissions"
        | "InvalidAuthenticationInfo"
        | "KeyBasedAuthenticationNotPermitted"
        | "NoAuthenticationInformation" => K::Unauthorized,
        _ => return None,
    })
}

fn by_status(status: u16) -> StoreErrorKind {
    use StoreErrorKind as K;
    match status {
        401 | 403 => K::Unauthorized,
        408 => K::Timeout,
        412 => K::ConditionNotMet,
        413 => K::TooLarge,
        429 | 503 => K::Throttled,
        400..500 if status != 404 && status != 409 => K::InvalidInput,
        500.. => K::Unavailable,
        _ => K::Protocol,
    }
}

/// Returns advice where the text of the kind has none.
fn hint(call: Call<'_>, kind: StoreErrorKind, code: Option<&str>, skew: Option<Duration>) -> Option<String> {
    if kind != StoreErrorKind::Unauthorized {
        return None;
    }
    if let Some(skew) = skew.filter(|skew| *skew > MAX_SKEW) {
        let minutes = skew.as_secs() / 60;
        return Some(format!("this machine's clock is {minutes} minutes off the storage's; set the clock"));
    }
    if let (Some("AuthorizationPermissionMismatch"), Some((letter, role))) = (code, permission(call)) {
        return Some(missing(format_args!("{letter:?}"), role));
    }
    let hint = match code? {
        "AuthenticationFailed" => "the signature or token is wrong, expired or not yet valid",
        "AuthorizationPermissionMismatch" => "a permission or role for this operation is missing",
        "AuthorizationProtocolMismatch" => "the shared access signature is for another protocol; use https",
        "AuthorizationResourceTypeMismatch" => "the shared access signature lacks a resource type (srt=sco)",
        "AuthorizationServiceMismatch" => "the shared access signature is for another service (ss=bq)",
        "AuthorizationSourceIPMismatch" => "the shared access signature is for another address",
        "AuthorizationFailure" => "the account's network rules or the signature's scope refuse it",
        "InvalidAuthenticationInfo" => "the token is malformed or for another tenant",
        "KeyBasedAuthenticationNotPermitted" => "the account refuses keys; use Entra ID",
        "AccountIsDisabled" => "the account is disabled",
        _ => return None,
    };
    Some(hint.to_owned())
}

/// Returns the detail of an error about missing permissions.
pub(super) fn missing(letters: impl fmt::Display, role: &str) -> String {
    format!("missing: {letters}; add it to the shared access signature, or assign the role {role}")
}

/// Returns the letter of a shared access signature that a call needs, and a role that allows the call.
/// <https://learn.microsoft.com/rest/api/storageservices/create-account-sas>
fn permission(call: Call<'_>) -> Option<(char, &'static str)> {
    let letter = match call.operation {
        "create queue" | "create container" => 'c',
        "read queue properties"
        | "peek messages"
        | "get blob"
        | "read blob properties"
        | "read container properties" => 'r',
        "list queues" | "list blobs" => 'l',
        "put message" => 'a',
        "update message" => 'u',
        "get messages" | "delete message" => 'p',
        "set queue metadata" | "put blob" | "acquire lease" | "renew lease" | "release lease" => 'w',
        "clear queue" | "delete queue" | "delete blob" | "delete container" => 'd',
        _ => return None,
    };
    let is_of_blobs = ["blob", "container", "lease"].iter().any(|word| call.operation.contains(word));
    Some((letter, if is_of_blobs { BLOBS_ROLE } else { QUEUES_ROLE }))
}

/// Returns the difference between this machine's clock and the service's.
fn skew(headers: &Headers) -> Option<Duration> {
    let theirs = date(headers)?;
    let ours = SystemTime::now();
    Some(ours.duration_since(theirs).unwrap_or_else(|early| early.duration()))
}

fn date(headers: &Headers) -> Option<SystemTime> {
    http_date(headers.get_optional_str(&HeaderName::from_static("date"))?)
}

fn retry_after(headers: &Headers) -> Option<Duration> {
    let number = |name| headers.get_optional_str(&HeaderName::from_static(name))?.trim().parse::<u64>().ok();
    number("x-ms-retry-after-ms")
        .or_else(|| number("retry-after-ms"))
        .map(Duration::from_millis)
        .or_else(|| number("retry-after").map(Duration::from_secs))
        .or_else(|| {
            let until = http_date(headers.get_optional_str(&HeaderName::from_static("retry-after"))?)?;
            Some(until.duration_since(SystemTime::now()).unwrap_or_default())
        })
}

#[cfg(test)]
#[path = "error_tests.rs"]
mod tests;
