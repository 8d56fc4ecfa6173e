use super::*;
use jobqueue_storage::StoreErrorKind as K;

fn answer(status: u16, headers: &[(&'static str, &str)], effect_once: bool) -> StoreError {
    let mut all = Headers::new();
    for (name, value) in headers {
        all.insert(*name, (*value).to_owned());
    }
    let raw = RawResponse::from_bytes(status.into(), all, "<Error>sig=hunter2</Error>");
    let queue = "orders";
    let call =
        if effect_once { Call::once("put message", &queue) } else { Call::reads("peek messages", &queue) };
    let error = ErrorKind::HttpResponse {
        status: status.into(),
        error_code: Some("ignored".to_owned()),
        raw_response: Some(Box::new(raw)),
    };
    from_sdk(call, &azure_core::Error::with_message(error, "body with sig=hunter2"))
}

/// The code decides; the status counts only if there is no known code.
#[test]
fn codes_come_before_statuses() {
    let table = [
        (404, Some("QueueNotFound"), K::QueueNotFound),
        (404, Some("MessageNotFound"), K::MessageNotFound),
        (400, Some("PopReceiptMismatch"), K::PopReceiptMismatch),
        (404, Some("PopReceiptMismatch"), K::PopReceiptMismatch),
        (409, Some("QueueAlreadyExists"), K::QueueAlreadyExists),
        (409, Some("QueueBeingDeleted"), K::QueueBeingDeleted),
        (409, Some("QueueDisabled"), K::QueueDisabled),
        (413, Some("RequestBodyTooLarge"), K::TooLarge),
        (400, Some("MessageTooLarge"), K::TooLarge),
        (403, Some("AuthenticationFailed"), K::Unauthorized),
        (403, Some("AuthorizationPermissionMismatch"), K::Unauthorized),
        (401, Some("NoAuthenticationInformation"), K::Unauthorized),
        (409, Some("BlobAlreadyExists"), K::BlobAlreadyExists),
        (409, Some("ContainerBeingDeleted"), K::ContainerBeingDeleted),
        (409, Some("LeaseAlreadyPresent"), K::LeaseAlreadyPresent),
        (409, Some("LeaseIdMismatchWithLeaseOperation"), K::LeaseIdMismatch),
        (412, Some("LeaseIdMismatchWithBlobOperation"), K::LeaseIdMismatch),
        (412, Some("LeaseIdMissing"), K::LeaseIdMissing),
        (412, Some("LeaseNotPresentWithBlobOperation"), K::LeaseNotPresent),
        (409, Some("LeaseIsBrokenAndCannotBeRenewed"), K::LeaseBroken),
        (412, Some("ConditionNotMet"), K::ConditionNotMet),
        (400, Some("OutOfRangeQueryParameterValue"), K::InvalidInput),
        (503, Some("ServerBusy"), K::Throttled),
        (500, Some("OperationTimedOut"), K::Timeout),
        (500, Some("SomethingNew"), K::Unavailable),
        (400, None, K::InvalidInput),
        (401, None, K::Unauthorized),
        (412, None, K::ConditionNotMet),
        (413, None, K::TooLarge),
        (429, None, K::Throttled),
        (500, None, K::Unavailable),
        (502, None, K::Unavailable),
        (200, None, K::Protocol),
        (302, None, K::Protocol),
        (404, None, K::Protocol),
    ];
    for (status, code, kind) in table {
        let code_header = code.map(|code| ("x-ms-error-code", code));
        let headers: Vec<_> = code_header.into_iter().chain([("x-ms-request-id", "1")]).collect();
        let error = answer(status, &headers, true);
        assert_eq!(error.kind(), kind, "{status} {code:?}");
        assert_eq!(error.is_ambiguous(), !(400..500).contains(&status), "{status} {code:?}");
        assert!(!answer(status, &headers, false).is_ambiguous(), "{status} {code:?}");
    }
}

#[test]
fn reading_leaves_nothing_open() {
    assert!(!answer(500, &[], false).is_ambiguous());
}

/// Without a token nothing was sent. The kind of the credential's error decides whether the failure is
/// transient.
#[test]
fn outage_of_the_credential_is_no_refusal() {
    let queue = "orders";
    for (kind, expected) in [(ErrorKind::Io, K::Unavailable), (ErrorKind::Credential, K::Unauthorized)] {
        let error = azure_core::Error::with_message(kind, "no token");
        let error = from_sdk(Call::once("delete message", &queue), &error);
        assert_eq!(error.kind(), expected, "{error}");
        assert!(!error.is_ambiguous(), "{error}");
        assert_eq!(error.is_retryable(), expected == K::Unavailable);
    }
}

#[test]
fn missing_permission_is_named_with_a_role() {
    let mismatch = [("x-ms-error-code", "AuthorizationPermissionMismatch"), ("x-ms-request-id", "1")];
    for (is_put, letter) in [(true, "'a'"), (false, "'r'")] {
        let text = answer(403, &mismatch, is_put).to_string();
        assert!(text.contains(&format!("missing: {letter}; ")) && text.contains(QUEUES_ROLE), "{text}");
    }
    let call = Call::reads("list blobs", &"jobqueue-batches");
    assert_eq!(permission(call), Some(('l', BLOBS_ROLE)));
}

/// Neither the body nor the SDK's text, which repeats it, is part of the error.
#[test]
fn bodies_are_not_repeated() {
    for status in [400, 403, 500] {
        let error = answer(status, &[("x-ms-error-code", "sig=hunter2&"), ("x-ms-request-id", "a-1")], true);
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("sig=") && shown.contains("a-1"), "{shown}");
    }
}

/// The service's requested pause is read in each of its forms.
#[test]
fn retry_after_is_read() {
    let wait = |name, value| answer(503, &[(name, value)], true).retry_after();
    assert_eq!(wait("retry-after", "7"), Some(Duration::from_secs(7)));
    assert_eq!(wait("x-ms-retry-after-ms", "1500"), Some(Duration::from_millis(1500)));
    assert_eq!(wait("retry-after", "Fri, 20 Nov 2020 20:37:46 GMT"), Some(Duration::ZERO));
    assert_eq!(wait("retry-after", "99999999999999"), Some(Duration::from_secs(300)));
    assert_eq!(wait("retry-after", "soon"), None);
}

/// A wrong clock looks like a wrong key; the date of the answer distinguishes them.
#[test]
fn wrong_clock_is_reported() {
    let date = "Fri, 20 Nov 2020 20:37:46 GMT";
    let error = answer(403, &[("x-ms-error-code", "AuthenticationFailed"), ("date", date)], true);
    assert!(error.to_string().contains("clock"), "{error}");
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_605_904_666);
    assert_eq!(error.answered_at(), Some(time));
    let error = answer(403, &[("x-ms-error-code", "AuthenticationFailed")], true);
    assert!(!error.to_string().contains("clock"), "{error}");
    assert!(error.to_string().contains("signature or token is wrong"), "{error}");
}
