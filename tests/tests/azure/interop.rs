//! Messages of a Python program with the stock packages, seen through the Azure storage.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use jobqueue::QueueName;
use jobqueue::azure::Options;
use jobqueue::settings::Metadata;
use jobqueue::storage::{GetMessages, PutMessage, Storage};
use jobqueue_tests::azurite::Azurite;
use jobqueue_tests::python;
use serde_json::{Value, json};

async fn storage() -> Storage {
    Storage::open(Options::from_connection_string(&Azurite::shared().connection_string()).unwrap())
        .await
        .unwrap()
}

#[tokio::test]
async fn a_python_producer_is_understood() {
    let storage = storage().await;
    let queue = QueueName::new(format!("interop-{}", uuid::Uuid::new_v4().simple())).unwrap();
    storage.queues().create_queue(&queue, &Metadata::new()).await.unwrap();
    let event = json!({"type": "thumbnail/request", "data": {"path": "ü <&> \"x\"", "n": 1}});
    let mut encoded = event.clone();
    encoded["base64"] = true.into();
    let bare = json!({"bare": {"path": "x"}});
    let settings = json!({"metadata": {"poisonthreshold": "3"}});
    let ids = python::produce(
        &Azurite::shared().connection_string(),
        queue.as_str(),
        &[event, encoded, bare, settings],
    );
    let options = GetMessages::new(32, Duration::from_secs(30));
    let messages = storage.queues().get(&queue, options).await.unwrap().messages;
    let texts: Vec<_> = messages.into_iter().map(|message| message.text.unwrap()).collect();
    assert_eq!(texts.len(), 3);
    let plain: Value = serde_json::from_str(&texts[0]).unwrap();
    let encoded: Value = serde_json::from_slice(&BASE64.decode(&texts[1]).unwrap()).unwrap();
    for (event, id) in [(plain, &ids[0]), (encoded, &ids[1])] {
        assert_eq!(event["specversion"], "1.0");
        assert_eq!(event["id"].as_str(), Some(id.as_str()));
        assert_eq!(event["data"]["path"], "ü <&> \"x\"");
    }
    assert_eq!(serde_json::from_str::<Value>(&texts[2]).unwrap(), json!({"path": "x"}));
    let metadata = storage.queues().queue_properties(&queue).await.unwrap().metadata;
    assert_eq!(metadata.get("poisonthreshold"), Some("3"));
}

#[tokio::test]
async fn a_python_consumer_understands_us() {
    let storage = storage().await;
    let queue = QueueName::new(format!("interop-{}", uuid::Uuid::new_v4().simple())).unwrap();
    storage.queues().create_queue(&queue, &Metadata::new().with("defaulttimeout", "60")).await.unwrap();
    let event = json!({
        "specversion": "1.0", "id": "1", "source": "urn:x", "type": "a/b",
        "datacontenttype": "application/json", "data": {"text": "ü\r\n<&>"},
    });
    storage.queues().put(&queue, PutMessage::new(event.to_string())).await.unwrap();
    let consumed = python::consume(&Azurite::shared().connection_string(), queue.as_str(), false);
    assert_eq!(consumed.metadata["defaulttimeout"], "60");
    assert_eq!(consumed.messages.len(), 1, "{consumed:?}");
    assert_eq!(consumed.messages[0]["event"]["attributes"]["type"], "a/b", "{consumed:?}");
    assert_eq!(consumed.messages[0]["event"]["data"], event["data"]);
    assert_eq!(storage.queues().queue_properties(&queue).await.unwrap().approximate_count, 0);
}
