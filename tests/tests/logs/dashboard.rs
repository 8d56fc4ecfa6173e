//! The log lines of the dashboard about its clients.

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, StatusCode};
use jobqueue::Storage;
use jobqueue_admin::{AccessLevel, Admin, RawSend};
use jobqueue_dashboard::Dashboard;
use jobqueue_tests::log;
use tower::ServiceExt as _;

/// `ada` with her password.
const ADA: &str = "Basic YWRhOnRoZS1yaWdodC1vbmU=";
/// `ada` with the password `wr0ng-passw0rd`.
const NOT_ADA: &str = "Basic YWRhOndyMG5nLXBhc3N3MHJk";
/// The password `typed-passw0rd` in place of the name.
const PASSWORD_AS_NAME: &str = "Basic dHlwZWQtcGFzc3cwcmQ6eA==";

async fn get(router: &Router, path: &str, login: &str) -> StatusCode {
    let peer = ConnectInfo(SocketAddr::from(([192, 0, 2, 7], 4711)));
    let request = Request::get(path).header("authorization", login).extension(peer);
    router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap().status()
}

// D30: of a look there was nothing, and of a guessed password a line without a name for each try.
#[tokio::test]
async fn reads_of_payloads_and_refused_logins_are_logged_without_secrets() {
    let log = log::record();
    let admin = Admin::builder(Storage::memory()).access(AccessLevel::Operate).build();
    admin.create_queue("mails").await.unwrap();
    let mail = RawSend::json("mail", r#"{"to":"s3cret-address"}"#).unwrap().id("waiting");
    admin.send("mails", mail).await.unwrap();
    let router = Dashboard::new(admin).credentials("ada", "the-right-one").router();
    let job = "/job?queue=mails&id=waiting";
    assert_eq!(get(&router, job, ADA).await, StatusCode::OK);
    assert!(!log.text().contains("reads the payload"), "the page shows it only on request: {}", log.text());
    // An open page is refreshed every few seconds.
    for _ in 0..9 {
        assert_eq!(get(&router, &format!("{job}&show=content"), ADA).await, StatusCode::OK);
    }
    assert_eq!(get(&router, "/api/jobs?queue=mails", ADA).await, StatusCode::OK);
    for _ in 0..12 {
        assert_eq!(get(&router, "/", NOT_ADA).await, StatusCode::UNAUTHORIZED);
    }
    assert_eq!(get(&router, "/", PASSWORD_AS_NAME).await, StatusCode::UNAUTHORIZED);

    let log = log.text();
    let lines = |text: &str| log.lines().filter(|line| line.contains(text)).collect::<Vec<_>>();
    for (text, expected) in [
        (
            "an operator reads the payload of a job",
            [["INFO", "job=waiting", "queue=mails", "operator=ada"]].as_slice(),
        ),
        (
            "an operator reads jobs with their payloads",
            &[["INFO", "document=/api/jobs", "queue=mails", "operator=ada"]],
        ),
        (
            "refused a wrong name, password or token",
            &[
                ["WARN", "user=ada", "peer=192.0.2.7", "times=1"],
                ["WARN", "user=ada", "peer=192.0.2.7", "times=10"],
                ["WARN", "user=unknown", "peer=192.0.2.7", "times=1"],
            ],
        ),
    ] {
        let lines = lines(text);
        assert_eq!(lines.len(), expected.len(), "{lines:#?}");
        for (line, parts) in lines.iter().zip(expected) {
            assert!(parts.iter().all(|part| line.contains(part)), "{parts:?}: {line}");
        }
    }
    for secret in ["s3cret", "passw0rd", "the-right-one"] {
        assert!(!log.contains(secret), "{secret}: {log}");
    }
}
