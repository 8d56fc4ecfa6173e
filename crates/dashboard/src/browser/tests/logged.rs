//! Lists of jobs where the storage shows its messages by a log, without their leases.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jobqueue::storage::{
    GetMessages, Interceptor, LogPage, LoggedMessage, LoggedState, MessageIndex, MessageLog, MessageState,
    QueueName, QueuePowers, StoreError,
};
use jobqueue::{SendOptions, Storage};
use jobqueue_admin::{DeadLetterFilter, RawSend};
use tokio::time::{Instant, sleep, timeout};

use super::changes::{ended, operation, previewed};
use super::support::{Browser, filled, operate, reject_all, send};

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

fn by_log(storage: &Storage) -> Storage {
    Storage::from(storage.stores().intercepted(&Arc::new(ByLog)))
}

/// Shows only empty pages by a log, each after a while, and never the last one.
#[derive(Debug)]
struct Endless;

impl Interceptor for Endless {
    fn queue_powers(&self, powers: QueuePowers) -> QueuePowers {
        QueuePowers { index: None, log: Some(Arc::new(Self)), ..powers }
    }
}

#[async_trait]
impl MessageLog for Endless {
    async fn logged(
        &self,
        _: &QueueName,
        _: Option<LoggedState>,
        _: Option<&str>,
        _: u32,
    ) -> Result<LogPage, StoreError> {
        sleep(Duration::from_millis(200)).await;
        Ok(LogPage::default().with_next(Some("1".to_owned())))
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
    let browser = Browser::operating(&by_log(&inner));
    let page = browser.page("/queues/mails/jobs").await;
    assert!(page.contains("<bdi>runs</bdi>") && page.contains("<bdi>waits</bdi>"), "{page}");
    assert!(page.contains("These jobs wait or run"), "{page}");
    let page = browser.page("/queues/mails/jobs?state=running").await;
    assert!(page.contains("does not show which jobs run"), "{page}");
    assert!(!page.contains("There is no such job"), "{page}");
    let page = browser.page("/queues/mails/jobs?state=delayed").await;
    assert!(page.contains("<bdi>later</bdi>") && !page.contains("do/run-now"), "{page}");
}

// It held a reading of the dashboard for a minute, failed, and had no mark from which to go on.
#[tokio::test(start_paused = true)]
async fn search_of_the_dead_letters_of_a_log_ends_in_time() {
    let inner = filled().await;
    let admin = operate(&Storage::from(inner.stores().intercepted(&Arc::new(Endless))));
    let filter = DeadLetterFilter::new().kind("other");
    let begun = Instant::now();
    let search = timeout(Duration::from_secs(60), admin.dead_letters_from("mails", &filter, None));
    let page = search.await.expect("the search ends").unwrap();
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert!(page.next.is_some() && !page.complete, "{page:?}");
}

// It said that the others were behind the first 100,000 jobs of a state.
#[tokio::test]
async fn outcome_of_a_redrive_says_what_a_log_does_not_show() {
    let inner = Storage::memory();
    let admin = operate(&inner);
    admin.create_queue("mails").await.unwrap();
    for number in 0..40 {
        send(&admin, &number.to_string()).await;
    }
    reject_all(&inner).await;
    let browser = Browser::operating(&by_log(&inner));
    let preview = previewed(&browser, &[("queue", "mails")]).await;
    let redrive = browser.post("/do/redrive", &[("plan", operation(&preview))]).await;
    let page = ended(&browser, redrive.location()).await;
    assert!(page.contains("40 put back"), "{page}");
    assert!(page.contains("8 were not found") && page.contains("beyond the first 32 messages"), "{page}");
}
