//! Judges that a schedule begins, goes on, skips no slot, and sends each slot once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use jobqueue_testing::world::{Disturbance, Entry, Fact, Finding, Verdict, World};
use tokio::time::sleep;

use super::{Evidence, finding};
use crate::mix::features::Feature;

const PREFIX: &str = "schedule/ticks/";
const EVERY_SECONDS: i64 = 20;

/// The time within which, if nothing fails, a schedule has a leader that has sent all due slots, and a worker
/// runs them.
const SETTLE_TIME: Duration = Duration::from_secs(60);

/// The maximum time for which a message is invisible because the process that received it has died.
const MAX_LEASE: Duration = Duration::from_secs(600);

/// Returns the ids of the messages that had not run when the workers ended.
pub(super) async fn waiting(world: &World) -> Vec<String> {
    sleep(MAX_LEASE).await;
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
    let mut found: Vec<_> =
        gaps.map(|pair| finding("a slot of a schedule is left out", PREFIX, format!("{pair:?}"))).collect();
    let plan = &evidence.diary.plan;
    // With a wrong clock, other slots are due.
    if plan.has(Feature::Schedule) && !plan.has(Feature::Skew) {
        found.extend(ends(evidence, &slots));
    }
    if plan.is_quiet() {
        found.extend(repeated(evidence));
    }
    found
}

/// Finds a schedule that does not begin soon after faults have ended, or does not go on until the workers
/// end.
fn ends(evidence: &Evidence, slots: &[i64]) -> Option<Finding> {
    let at =
        |is: fn(&Entry) -> bool| evidence.history.iter().rev().find(|entry| is(entry)).map(|entry| entry.at);
    let faultless = at(|entry| matches!(&entry.fact, Fact::Incident(Disturbance::FaultsEnd)))?;
    let faultless = if evidence.diary.plan.is_quiet() { Duration::ZERO } else { faultless };
    let end = at(|entry| matches!(&entry.fact, Fact::Incident(Disturbance::StopRequested)))?;
    let faultless = faultless.max(awake_since(evidence, end)?);
    let began = evidence.world.clock().now() - evidence.world.now();
    let since = |slot: &i64| {
        let slot = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(*slot).unwrap_or_default());
        slot.duration_since(began).unwrap_or_default()
    };
    let first = slots.first().map(since).filter(|first| *first < faultless + SETTLE_TIME);
    let last = slots.last().map(since).filter(|last| *last + SETTLE_TIME > end);
    match (first, last) {
        (None, _) if end > faultless + SETTLE_TIME => {
            let text = format!(
                "nothing fails since {faultless:?}, and its first slots are {:?}",
                slots.first().map(since)
            );
            Some(finding("a schedule does not begin", PREFIX, text))
        }
        (Some(_), None) if end > faultless + SETTLE_TIME => {
            let text =
                format!("the workers end at {end:?}, and its last slot is {:?}", slots.last().map(since));
            Some(finding("a schedule goes no further", PREFIX, text))
        }
        _ => None,
    }
}

/// Returns the time since when at least one worker process is not frozen, which is zero if it never was, or
/// `None` if all are frozen at `end`. The end of faults does not end a freeze.
fn awake_since(evidence: &Evidence, end: Duration) -> Option<Duration> {
    let mut awake: BTreeMap<&str, Option<Duration>> = BTreeMap::new();
    for entry in evidence.history.iter().filter(|entry| entry.at <= end) {
        let since = match &entry.fact {
            Fact::Noted(text) if text == "starts" => Some(Duration::ZERO),
            Fact::Incident(Disturbance::Continues) => Some(entry.at),
            Fact::Incident(Disturbance::Frozen { .. }) => None,
            _ => continue,
        };
        awake.insert(&entry.node, since);
    }
    let stopped = evidence
        .history
        .iter()
        .filter(|entry| entry.at == end && matches!(&entry.fact, Fact::Incident(Disturbance::StopRequested)));
    stopped.filter_map(|entry| awake.get(&*entry.node).copied().flatten()).min()
}

/// Finds a slot that is sent twice although nothing fails.
fn repeated(evidence: &Evidence) -> Option<Finding> {
    let mut puts: BTreeMap<&str, u32> = BTreeMap::new();
    for entry in &evidence.history {
        let is_stored = matches!(&entry.fact, Fact::Put { verdict: Verdict::Acknowledged, queue, .. } if !queue.contains("-poison"));
        let slot = entry.job.as_deref().filter(|job| is_stored && job.starts_with(PREFIX));
        if let Some(slot) = slot {
            *puts.entry(slot).or_default() += 1;
        }
    }
    let (slot, count) = puts.into_iter().find(|(_, count)| *count > 1)?;
    Some(finding("a slot of a schedule is sent twice", slot, format!("{count} puts were acknowledged")))
}
