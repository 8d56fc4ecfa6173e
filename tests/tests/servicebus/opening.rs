//! Connection strings, TLS, and settings of queues that contradict the framework.

use std::pin::pin;
use std::time::Duration;

use jobqueue::servicebus::Options;
use jobqueue::storage::{Access, Created, GetMessages, PutMessage, StoreErrorKind, UpdateMessage};
use jobqueue::{ErrorKind, QueueName, Storage};
use jobqueue_test_support::servicebus::ServiceBus;
use jobqueue_tests::log;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::late_answers::pass;
use super::{Bench, MINUTE};

const KEY: &str = "tops3cret";

#[tokio::test]
async fn one_string_opens_queues_and_blobs() {
    let emulator = ServiceBus::start();
    let folder = tempfile::tempdir().unwrap();
    let blobs = folder.path().join("blobs.db");
    let text = format!("{};Blobs=sqlite:{}", emulator.connection_string(), blobs.display());
    let storage = Storage::connect(&text).await.unwrap();
    assert!(storage.description().starts_with("servicebus:127.0.0.1 + blobs of sqlite:"), "{storage:?}");
    let spaced = Storage::connect(&text.replace(";Blobs=", "; blobs = ")).await.unwrap();
    assert_eq!(spaced.description(), storage.description());
    let queue = QueueName::new("work").unwrap();
    storage.queues().create_queue(&queue, &Default::default()).await.unwrap();
    storage.queues().put(&queue, PutMessage::new("text")).await.unwrap();
    assert_eq!(storage.queues().queue_properties(&queue).await.unwrap().approximate_count, 1);
}

#[tokio::test]
async fn a_wrong_string_is_refused_without_its_key() {
    let namespace = format!("Endpoint=sb://a.example/;SharedAccessKeyName=n;SharedAccessKey={KEY}");
    for (text, hint) in [
        (namespace.clone(), "Blobs="),
        (format!("{namespace};Blobs="), "Blobs="),
        (format!("{namespace};Blobs={namespace};Blobs=memory:"), "Blobs="),
        (format!("{namespace};EntityPath=q;Blobs=memory:"), "EntityPath"),
        (format!("Endpoint=sb://a.example/;SharedAccessKey={KEY};Blobs=memory:"), "SharedAccessKeyName"),
    ] {
        let error = Storage::connect(&text).await.unwrap_err();
        let shown = format!("{error:?} {error:#?}");
        assert_eq!(error.kind(), ErrorKind::Configuration, "{shown}");
        assert!(shown.contains(hint) && !shown.contains(KEY), "{shown}");
    }
    let options = Options::from_connection_string(&namespace).unwrap();
    assert!(!format!("{options:#?}").contains(KEY));
}

// They became part of the name of a file, which the description of the storage shows, or of a host.
#[tokio::test]
async fn settings_behind_the_blobs_are_refused_without_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", folder.path().join("blobs.db").display());
    let (endpoint, key) =
        ("Endpoint=sb://a.example/", format!("SharedAccessKeyName=n;SharedAccessKey={KEY}"));
    let spaced = format!(" sharedaccesskey = {KEY}");
    for blobs in [file.as_str(), "https://account.queue.core.windows.net", "postgres://app@localhost/d"] {
        for text in [
            format!("{endpoint};Blobs={blobs};{key}"),
            format!("{endpoint};SharedAccessKeyName=n;Blobs={blobs};{spaced}"),
            format!("{key};Blobs={blobs};{endpoint}"),
        ] {
            let error = Storage::connect(&text).await.unwrap_err();
            let shown = format!("{error:?} {error:#?}");
            assert_eq!(error.kind(), ErrorKind::Configuration, "{shown}");
            assert!(shown.contains("last setting") && !shown.contains(KEY), "{shown}");
        }
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn tls_trusts_a_given_authority_and_no_other() {
    let emulator = ServiceBus::start();
    emulator.create_queue("work", json!({}));
    let queue = QueueName::new("work").unwrap();
    let options = || Options::from_connection_string(&emulator.tls_connection_string()).unwrap();
    let pem = std::fs::read(emulator.certificate_path()).unwrap();
    let trusting = Storage::from(options().root_certificate(&pem).with_blobs_of(Storage::memory()).unwrap());
    trusting.queues().put(&queue, PutMessage::new("text")).await.unwrap();
    assert_eq!(trusting.queues().queue_properties(&queue).await.unwrap().approximate_count, 1);
    let wary = Storage::from(options().with_blobs_of(Storage::memory()).unwrap());
    let error = wary.queues().put(&queue, PutMessage::new("text")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
    assert!(!error.is_ambiguous(), "{error:?}");
}

#[tokio::test]
async fn amqp_goes_through_web_sockets_with_and_without_tls() {
    let bench = Bench::new();
    let pem = std::fs::read(bench.emulator.certificate_path()).unwrap();
    let plain = format!("{};TransportType=AmqpWebSockets", bench.emulator.connection_string());
    let plain = Options::from_connection_string(&plain).unwrap();
    let tls = Options::from_connection_string(&bench.emulator.tls_connection_string()).unwrap();
    let tls = tls.root_certificate(&pem).web_socket(true);
    for options in [plain, tls] {
        let storage = Storage::from(options.with_blobs_of(&bench.blobs).unwrap());
        let text = "x".repeat(60_000);
        storage.queues().put(&bench.queue, PutMessage::new(text.as_str())).await.unwrap();
        let leased = bench.get_from(&storage).await.unwrap();
        storage.queues().update(&bench.queue, &leased.message, UpdateMessage::new(MINUTE)).await.unwrap();
        assert_eq!(leased.text.as_deref(), Ok(text.as_str()));
        storage.queues().delete(&bench.queue, &leased.message, Default::default()).await.unwrap();
        // The socket is cut, and another is opened.
        assert!(bench.emulator.strike("abort", None) > 0);
        while let Err(error) = storage.queues().put(&bench.queue, PutMessage::new("again")).await {
            assert!(error.is_retryable(), "{error:?}");
        }
        let leased = bench.get_from(&storage).await.unwrap();
        storage.queues().delete(&bench.queue, &leased.message, Default::default()).await.unwrap();
    }
    assert_eq!(bench.count("active"), 0);
}

// A library for WebSocket may log each frame, and with it the token and the payload.
#[tokio::test]
async fn the_finest_log_of_a_web_socket_shows_no_token_and_no_payload() {
    let log = log::record();
    let bench = Bench::new();
    let options = Options::from_connection_string(bench.emulator.connection_string()).unwrap();
    let storage = Storage::from(options.web_socket(true).with_blobs_of(&bench.blobs).unwrap());
    storage.queues().put(&bench.queue, PutMessage::new("secret-payload")).await.unwrap();
    bench.get_from(&storage).await.unwrap();
    let text = log.text();
    assert!(text.contains(" TRACE "), "nothing is recorded");
    let signature = ["sig=", "sig%3D", "SharedAccessSignature"].iter().find(|name| text.contains(**name));
    assert!(signature.is_none() && !text.contains("secret-payload"), "{signature:?}");
}

// RFC 6455, section 4.1: a peer that does not name the protocol does not speak it.
#[tokio::test]
async fn a_web_socket_of_another_protocol_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let text = format!(
        "Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=n;SharedAccessKey={KEY};UseDevelopmentEmulator=true"
    );
    let options = Options::from_connection_string(&text).unwrap().web_socket(true);
    let storage = Storage::from(options.with_blobs_of(Storage::memory()).unwrap());
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            drop(tokio_websockets::ServerBuilder::new().accept(socket).await);
        }
    });
    let error = storage.queues().peek(&QueueName::new("work").unwrap(), 1).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
    assert!(format!("{error:?}").contains("not the AMQP subprotocol"), "{error:?}");
}

#[tokio::test]
async fn web_sockets_are_asked_for_as_the_service_wants_them() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let text = format!(
        "Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=n;SharedAccessKey={KEY};UseDevelopmentEmulator=true"
    );
    let options = Options::from_connection_string(&text).unwrap().web_socket(true);
    let storage = Storage::from(options.with_blobs_of(Storage::memory()).unwrap());
    let queue = QueueName::new("work").unwrap();
    let (asked, mut requests) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let mut lines = BufReader::new(socket).lines();
            let mut head = Vec::new();
            while let Some(line) = lines.next_line().await.unwrap().filter(|line| !line.is_empty()) {
                head.push(line.to_ascii_lowercase());
            }
            asked.send(head).unwrap();
        }
    });
    let error = storage.queues().peek(&queue, 1).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
    let is_upgrade = |head: &Vec<String>| head[0].starts_with("get /$servicebus/websocket ");
    let head = std::iter::from_fn(|| requests.try_recv().ok()).find(is_upgrade).expect("an upgrade");
    assert!(head.contains(&"sec-websocket-protocol: amqp".to_owned()), "{head:?}");
}

#[tokio::test]
async fn a_wrong_key_is_told_and_not_shown() {
    let emulator = ServiceBus::start();
    emulator.create_queue("work", json!({}));
    let right = emulator.connection_string();
    let (before, _) = right.split_once("SharedAccessKey=").unwrap();
    let text = format!("{before}SharedAccessKey={KEY};UseDevelopmentEmulator=true;Blobs=memory:");
    let storage = Storage::connect(&text).await.unwrap();
    let error =
        storage.queues().put(&QueueName::new("work").unwrap(), PutMessage::new("text")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unauthorized, "{error:?}");
    assert!(!error.is_ambiguous(), "{error:?}");
    assert!(!format!("{error:#?}").contains(KEY));
}

#[tokio::test]
async fn settings_that_contradict_the_framework_are_warned_of() {
    let log = log::record();
    let bench = Bench::with(json!({ "LockDuration": "PT5S", "MaxDeliveryCount": 10 }), &[]);
    bench.leased("secret-payload").await;
    let text = log.text();
    assert!(text.contains("set LockDuration to PT1M"), "{text}");
    assert!(text.contains("set MaxDeliveryCount above maxdeliveries"), "{text}");
    assert!(text.contains("recreate the queue with RequiresDuplicateDetection"), "{text}");
    let signature = text.contains("sig=") || text.contains("SharedAccessSignature");
    assert!(!text.contains("secret-payload") && !signature, "{text}");
}

// Another question found the length of the locks meanwhile, which was taken for an answer to this one.
#[tokio::test]
async fn settings_that_could_not_be_read_at_first_are_warned_of_later() {
    let log = log::record();
    let bench = Bench::with(json!({ "LockDuration": "PT7S" }), &[]);
    let fault = bench.emulator.plant_with("http-get", "error", json!({ "status": 503 }));
    assert!(bench.get().await.is_none());
    assert_eq!(fault.hits(), 1);
    let warning = "the locks of this queue last only 7 s";
    assert!(!log.text().contains(warning), "{}", log.text());
    pass(2 * MINUTE).await;
    // After so long without a frame the connection may be given up.
    let warned = async {
        while !log.text().contains(warning) {
            let _ = bench.store().get(&bench.queue, GetMessages::new(1, MINUTE)).await;
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(MINUTE / 2, warned).await.expect("no warning");
}

#[tokio::test]
async fn an_operator_is_told_what_to_change_about_a_queue() {
    let bench = Bench::with(json!({ "LockDuration": "PT5S", "MaxDeliveryCount": 10 }), &[]);
    let all = bench.store().advice(&bench.queue).await.unwrap();
    let warnings: Vec<_> =
        all.iter().filter(|advice| advice.is_warning).map(|advice| advice.text.as_str()).collect();
    assert!(warnings[0].contains("last only 5 s") && warnings[0].contains("LockDuration"), "{warnings:?}");
    assert!(warnings[1].contains("after 10 deliveries"), "{warnings:?}");
    assert!(
        all.iter().any(|advice| !advice.is_warning && advice.text.contains("RequiresDuplicateDetection"))
    );
    let suits = json!({ "MaxDeliveryCount": 2000, "RequiresDuplicateDetection": true });
    assert!(Bench::with(suits, &[]).store().advice(&bench.queue).await.unwrap().is_empty());
    let missing = QueueName::new("missing").unwrap();
    assert!(bench.store().advice(&missing).await.unwrap().is_empty());
}

#[tokio::test]
async fn each_setting_that_can_drop_a_job_is_named() {
    for (setting, value) in [
        ("DefaultMessageTimeToLive", json!("P14D")),
        ("AutoDeleteOnIdle", json!("P30D")),
        ("ForwardTo", json!("other")),
        ("ForwardDeadLetteredMessagesTo", json!("morgue")),
        ("EnableExpress", json!(true)),
        ("EnablePartitioning", json!(true)),
    ] {
        let suits = json!({ "MaxDeliveryCount": 2000, "RequiresDuplicateDetection": true, setting: value });
        let all = Bench::with(suits, &[]).store().advice(&QueueName::new("work").unwrap()).await.unwrap();
        let [advice] = all.as_slice() else { panic!("{setting}: {all:?}") };
        assert!(advice.is_warning && advice.text.contains(setting), "{advice:?}");
    }
    let expiring =
        |dead: bool| json!({ "DefaultMessageTimeToLive": "P14D", "DeadLetteringOnMessageExpiration": dead });
    for (dead, words) in [(true, "dead-letters them"), (false, "DeadLetteringOnMessageExpiration is off")] {
        let bench = Bench::with(expiring(dead), &[]);
        let all = bench.store().advice(&bench.queue).await.unwrap();
        assert!(all.iter().any(|advice| advice.text.contains(words)), "{all:?}");
    }
}

/// Answers of the service to a request that another operation on the queue stands in the way of.
const CONFLICTS: [&str; 3] = [
    "SubCode=40900. Conflict. The operation is not allowed in the resource's current state.",
    "SubCode=40901. Another conflicting operation is in progress.",
    "Resource Conflict Occurred. Another conflicting operation may be in progress.",
];

#[tokio::test]
async fn a_queue_that_is_being_deleted_is_not_taken_for_one_that_exists() {
    let emulator = ServiceBus::start();
    let options = Options::from_connection_string(emulator.connection_string()).unwrap();
    let storage = Storage::from(options.with_blobs_of(Storage::memory()).unwrap());
    let queue = QueueName::new("work").unwrap();
    for text in CONFLICTS {
        emulator.plant_with("http-put", "error", json!({ "status": 409, "description": text }));
        let error = storage.queues().create_queue(&queue, &Default::default()).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::QueueBeingDeleted, "{error:?}");
        assert!(!error.is_ambiguous(), "{error:?}");
    }
    for created in [Created::New, Created::Existed] {
        assert_eq!(storage.queues().create_queue(&queue, &Default::default()).await.unwrap(), created);
    }
}

// It was called invalid input, which no try mends.
#[tokio::test]
async fn a_queue_that_is_being_created_can_be_deleted_later() {
    let bench = Bench::new();
    for text in CONFLICTS {
        bench.emulator.plant_with("http-delete", "error", json!({ "status": 409, "description": text }));
        let error = bench.store().delete_queue(&bench.queue).await.unwrap_err();
        assert!(error.is_retryable() && !error.is_ambiguous(), "{error:?}");
    }
    bench.store().delete_queue(&bench.queue).await.unwrap();
}

// Back-off is a copy, which was refused after the job had failed.
#[tokio::test]
async fn a_worker_that_may_not_put_jobs_back_says_so_at_its_start() {
    let bench = Bench::new();
    let fields = json!({ "entity": "work", "condition": "amqp:unauthorized-access", "times": null });
    bench.emulator.plant_with("attach-sender", "error", fields);
    let error = bench.store().check_access(&bench.queue, Access::Process).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unauthorized);
    assert!(error.to_string().contains("claim Send"), "{error}");
    let letters = bench.queue.dead_letter().unwrap();
    bench.store().check_access(&letters, Access::Process).await.unwrap();
}

#[tokio::test]
async fn queues_are_created_with_the_settings_that_were_asked_for() {
    let emulator = ServiceBus::start();
    let options = Options::from_connection_string(emulator.connection_string()).unwrap();
    let minutes = std::time::Duration::from_secs(600);
    let options = options.duplicate_detection(minutes).lock_duration(MINUTE * 2);
    let storage = Storage::from(options.sessions(true).with_blobs_of(Storage::memory()).unwrap());
    let queue = QueueName::new("work").unwrap();
    storage.queues().create_queue(&queue, &Default::default()).await.unwrap();
    let settings = &emulator.queue("work")["settings"];
    assert_eq!(settings["RequiresDuplicateDetection"], "true");
    assert_eq!(settings["RequiresSession"], "true");
    assert!(storage.queues().orders_groups(&queue).await.unwrap());
    assert_eq!(&settings["LockDuration"], &json!("PT2M"));
    assert_eq!(&settings["MaxDeliveryCount"], &json!("2000"));
    for wrong in [minutes / 60, minutes * 6 * 24 * 8] {
        let options = Options::from_connection_string(emulator.connection_string()).unwrap();
        let refused = options.duplicate_detection(wrong).with_blobs_of(Storage::memory()).unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Configuration);
    }
}

// The task with the question was dropped before its first step, and no operation asked again.
#[test]
fn queue_is_asked_about_again_after_the_runtime_of_the_question_has_ended() {
    let bench = Bench::new();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime().block_on(async {
        let mut asking = pin!(bench.store().orders_groups(&bench.queue));
        assert!(futures_util::poll!(&mut asking).is_pending());
    });
    let asked = runtime().block_on(bench.store().orders_groups(&bench.queue));
    assert!(!asked.unwrap(), "the first operation asks again");
}
