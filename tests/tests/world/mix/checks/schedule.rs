//! A schedule skips no slot.

use std::collections::BTreeSet;
use std::time::Duration;

use jobqueue_testing::world::{Fact, Finding, World};
use tokio::time::sleep;

use super::{Evidence, finding};

const PREFIX: &str = "schedule/ticks/";
const EVERY_SECONDS: i64 = 20;

/// The maximum time that a message is invisible because a process died that had received it.
const LEASED: Duration = Duration::from_secs(600);

/// Returns the ids of the messages that were not run before the workers ended.
pub(super) async fn waiting(world: &World) -> Vec<String> {
    sleep(LEASED).await;
    let mut ids = Vec::new();
    for account in world.accounts() {
        for queue in account.queues().list_queues("parts").await.unwrap_or_default() {
            let peeked = account.queues().peek(&queue, 32).await.unwrap_or_default();
            let events = peeked.iter().filter_map(|message| message.text.as_ref().ok());
            let events = events.filter_map(|text| serde_json::from_str::<serde_json::Value>(text).ok());
            ids.extend(events.filter_map(|event| event["id"].as_str().map(str::to_owned)));
        }
    }
    ids
}

pub(super) fn check(evidence: &Evidence, waiting: &[String]) -> Vec<Finding> {
    let began = evidence.history.iter().filter(|entry| matches!(entry.fact, Fact::RunBegan { .. }));
    let run = began.filter_map(|entry| entry.job.as_deref());
    let slots: BTreeSet<i64> = run
        .chain(waiting.iter().map(String::as_str))
        .filter_map(|id| id.strip_prefix(PREFIX))
        .filter_map(|slot| slot.parse::<jiff::Timestamp>().ok().map(|slot| slot.as_second()))
        .collect();
    let slots: Vec<i64> = slots.into_iter().collect();
    let gaps = slots.windows(2).filter(|pair| pair[1] - pair[0] != EVERY_SECONDS);
    gaps.map(|pair| finding("a slot of a schedule is left out", PREFIX, format!("{pair:?}"))).collect()
}
