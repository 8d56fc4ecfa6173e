//! Helpers that the tests of the operator's view share.

use std::sync::{Arc, Mutex};

use jobqueue::Storage;
use jobqueue::storage::PutMessage;
use jobqueue_admin::{AccessLevel, Admin, OperatorEvent, OperatorResult, RawSend};

/// Returns an operator who may do everything.
pub fn operator(storage: &Storage) -> Admin {
    Admin::builder(storage.clone()).access(AccessLevel::Operate).operator("ada").build()
}

/// Returns the events of the ends of an operator's actions, and the operator.
pub fn watched(storage: &Storage, access: AccessLevel) -> (Admin, Arc<Mutex<Vec<OperatorEvent>>>) {
    let events: Arc<Mutex<Vec<OperatorEvent>>> = Arc::default();
    let sink = Arc::clone(&events);
    let listen = move |event: &OperatorEvent| {
        if event.result != OperatorResult::Started {
            sink.lock().unwrap().push(event.clone());
        }
    };
    let admin = Admin::builder(storage.clone()).access(access).operator("ada").on_event(listen).build();
    (admin, events)
}

/// Returns every storage that needs no other program, with what keeps it alive.
pub async fn storages() -> Vec<(Storage, Option<tempfile::TempDir>)> {
    let folder = tempfile::tempdir().unwrap();
    let file =
        Storage::connect(&format!("sqlite:{}", folder.path().join("jobs.db").display())).await.unwrap();
    vec![(Storage::memory(), None), (file, Some(folder))]
}

/// Puts a text into a dead-letter queue, as another program may.
pub async fn put_letter(admin: &Admin, queue: &str) {
    admin.create_queue(queue).await.unwrap();
    let put = PutMessage::new("a letter");
    let _ = admin.storage().queues().put(&queue.parse().unwrap(), put).await.unwrap();
}

/// Sends jobs with these ids, of the kind `task`.
pub async fn send(admin: &Admin, queue: &str, ids: impl IntoIterator<Item = String>) {
    admin.create_queue(queue).await.unwrap();
    for id in ids {
        let job = RawSend::json("task", &format!("{{\"name\":\"{id}\",\"data\":\"\"}}")).unwrap().id(&id);
        let _ = admin.send(queue, job).await.unwrap();
    }
}
