//! Lists of jobs where the storage shows its messages by a log, without their leases.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jobqueue::storage::{
    GetMessages, Interceptor, LogPage, LoggedMessage, LoggedState, MessageIndex, MessageLog, MessageState,
    QueueName, QueuePowers, StoreError,
};
use jobqueue::{SendOptions, Storage};
use jobqueue_admin::RawSend;

use super::support::{Browser, operate, send};

/// Shows the messages of an index by a log.
#[derive(Debug)]
struct ByLog;

impl Interceptor for ByLog {
    fn queue_powers(&self, powers: QueuePowers) -> QueuePowers {
        let log = powers.index.map(|index| -> Arc<dyn MessageLog> { Arc::new(Log(index)) });
        QueuePowers { index: None, log, ..powers }
    }
}

/// The first page of each state of an index.
#[derive(Debug)]
struct Log(Arc<dyn MessageIndex>);

#[async_trait]
impl MessageLog for Log {
    async fn logged(
        &self,
        queue: &QueueName,
        state: Option<LoggedState>,
        _: Option<&str>,
        count: u32,
    ) -> Result<LogPage, StoreError> {
        let mut messages = Vec::new();
        for of_index in MessageState::ALL {
            let shown = match of_index {
                MessageState::Waiting | MessageState::Running => LoggedState::Active,
                MessageState::Delayed => LoggedState::Delayed,
                MessageState::BackingOff => LoggedState::BackingOff,
            };
            if state.is_none_or(|state| state == shown) {
                let page = self.0.messages(queue, of_index, None, count).await?;
                let logged = |(message, due)| LoggedMessage::new(message, shown, Some(due));
                messages.extend(page.messages.into_iter().map(logged));
            }
        }
        Ok(LogPage::new(messages))
    }
}

#[tokio::test]
async fn waiting_jobs_may_run_where_leases_are_not_shown() {
    let inner = Storage::memory();
    let (admin, mails) = (operate(&inner), QueueName::new("mails").unwrap());
    admin.create_queue("mails").await.unwrap();
    send(&admin, "runs").await;
    let leased = inner.queues().get(&mails, GetMessages::new(1, Duration::from_secs(60))).await.unwrap();
    assert_eq!(leased.messages.len(), 1);
    send(&admin, "waits").await;
    let later = SendOptions::new().delay(Duration::from_secs(3_600));
    admin.send("mails", RawSend::json("mail", "{}").unwrap().id("later").with(later)).await.unwrap();
    let storage = Storage::from(inner.stores().intercepted(&Arc::new(ByLog)));
    let browser = Browser::operating(&storage);
    let page = browser.page("/queues/mails/jobs").await;
    assert!(page.contains("<bdi>runs</bdi>") && page.contains("<bdi>waits</bdi>"), "{page}");
    assert!(page.contains("These jobs wait or run"), "{page}");
    let page = browser.page("/queues/mails/jobs?state=running").await;
    assert!(page.contains("does not show which jobs run"), "{page}");
    assert!(!page.contains("There is no such job"), "{page}");
    let page = browser.page("/queues/mails/jobs?state=delayed").await;
    assert!(page.contains("<bdi>later</bdi>") && !page.contains("do/run-now"), "{page}");
}
