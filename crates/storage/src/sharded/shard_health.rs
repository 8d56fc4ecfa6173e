//! Pauses shards that are throttled or fail, so that they do not slow down the others.
//!
//! A shard has two records, because its puts may hang while its gets are answered, and the reverse. Any
//! failure pauses its puts without a key, since other shards can take the messages. Its gets are paused only
//! if a get fails or the shard is throttled, since no other shard has its messages.
//!
//! | event | record | `failures` | `failed_at` | `closed_until` | `is_suspect` |
//! |---|---|---|---|---|---|
//! | get answered | gets | 0 | none | none | false |
//! | put without a key answered, or its message refused | puts | 0 | none | none | false |
//! | get failed, or get or put throttled | both | + 1 | now | ≥ now + pause | true if unanswered |
//! | put failed otherwise | puts | + 1 | now | ≥ now + pause | true if unanswered |
//! | put without a key begun, shard suspect and open (a probe) | puts | | | now + 30 s | |
//!
//! A request that began before `failed_at` shows nothing about the time since: its answer changes nothing,
//! and its failure does not change `failures`.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::map::Shard;
use crate::name::QueueName;
use crate::sync::lock;
use crate::{StoreError, StoreErrorKind};

const FIRST_PAUSE: Duration = Duration::from_millis(250);
const MAX_PAUSE: Duration = Duration::from_secs(30);
const UNANSWERED_PAUSE: Duration = Duration::from_secs(20);

/// The recent behaviour of each shard.
#[derive(Debug, Default)]
pub(super) struct ShardHealth(Mutex<HashMap<(QueueName, Shard), ShardState>>);

/// The start of a request to a shard.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    kind: RequestKind,
    pub(super) at: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestKind {
    Get,
    Put,
    PutWithKey,
}

#[derive(Debug, Default)]
struct ShardState {
    gets: RequestRecord,
    puts: RequestRecord,
}

/// The failures since the last answer.
#[derive(Debug, Default)]
struct RequestRecord {
    /// The number of failures; those of requests side by side count as one.
    failures: u32,
    failed_at: Option<Instant>,
    closed_until: Option<Instant>,
    /// True if a request was not answered in time.
    is_suspect: bool,
}

impl ShardHealth {
    fn with<T>(&self, queue: &QueueName, shard: &Shard, action: impl FnOnce(&mut ShardState) -> T) -> T {
        let mut states = lock(&self.0);
        action(states.entry((queue.clone(), shard.clone())).or_default())
    }

    /// Returns the time until the shard may be asked again; `None` if it may be asked now.
    pub(super) fn closed_for(&self, queue: &QueueName, shard: &Shard, kind: RequestKind) -> Option<Duration> {
        self.with(queue, shard, |state| state.record(kind).closed_for(Instant::now()))
    }

    /// Returns the number of failures of gets, at least 1, of a shard that has not answered a get since.
    pub(super) fn unanswered_gets(&self, queue: &QueueName, shard: &Shard) -> Option<u32> {
        self.with(queue, shard, |state| state.gets.is_suspect.then_some(state.gets.failures))
    }

    /// Records that a request begins. If the shard is suspect, a put without a key probes it: others avoid it
    /// until a put is answered, for 30 seconds at most.
    pub(super) fn begin(&self, queue: &QueueName, shard: &Shard, kind: RequestKind) -> Asked {
        let at = Instant::now();
        if kind == RequestKind::Put {
            self.with(queue, shard, |state| {
                if state.puts.is_suspect && state.puts.closed_for(at).is_none() {
                    state.puts.closed_until = Some(at + MAX_PAUSE);
                }
            });
        }
        Asked { kind, at }
    }

    /// Records that the shard answered: it served the request, or refused its message.
    pub(super) fn answered(&self, queue: &QueueName, shard: &Shard, asked: Asked) {
        // A key leaves no choice: its messages go to the shard even if only its gets hang.
        if asked.kind == RequestKind::PutWithKey {
            return;
        }
        self.with(queue, shard, |state| {
            let record = state.record(asked.kind);
            if record.is_news(asked.at) {
                *record = RequestRecord::default();
            }
        });
    }

    /// Records a failure of the shard. A shard that may serve later is paused: for the time that it asks for,
    /// or else from 250 ms doubling to 30 s, and at least 20 s if it did not answer.
    pub(super) fn failed(&self, queue: &QueueName, shard: &Shard, asked: Asked, error: &StoreError) {
        // The other shards hide the failure from the caller, so only the log shows it. A missing shard is
        // retired, or is created again.
        if error.kind() != StoreErrorKind::QueueNotFound {
            let Shard { generation, number, account } = shard;
            crate::log::warn!(%queue, account, shard = number, generation, %error, "a request to a shard failed");
        }
        if !error.is_retryable() && error.kind() != StoreErrorKind::Stopped {
            return;
        }
        self.with(queue, shard, |state| {
            state.puts.fail(asked.at, error);
            if asked.kind == RequestKind::Get || error.is_throttled() {
                state.gets.fail(asked.at, error);
            }
        });
    }
}

impl ShardState {
    fn record(&mut self, kind: RequestKind) -> &mut RequestRecord {
        match kind {
            RequestKind::Get => &mut self.gets,
            RequestKind::Put | RequestKind::PutWithKey => &mut self.puts,
        }
    }
}

impl RequestRecord {
    fn closed_for(&self, now: Instant) -> Option<Duration> {
        self.closed_until.map(|until| until.saturating_duration_since(now)).filter(|wait| !wait.is_zero())
    }

    /// Returns whether no request has failed since `asked`.
    fn is_news(&self, asked: Instant) -> bool {
        self.failed_at.is_none_or(|failed| failed <= asked)
    }

    fn fail(&mut self, asked: Instant, error: &StoreError) {
        let now = Instant::now();
        self.failures += u32::from(self.is_news(asked));
        self.failed_at = Some(now);
        let pause = FIRST_PAUSE.saturating_mul(1 << (self.failures - 1).min(10));
        let is_unanswered = error.kind() == StoreErrorKind::Timeout && !error.is_throttled();
        // A shard that does not answer has already delayed the others.
        let pause = if is_unanswered { pause.max(UNANSWERED_PAUSE) } else { pause };
        let until = now + error.retry_after().unwrap_or(pause).min(MAX_PAUSE);
        self.closed_until = self.closed_until.max(Some(until));
        self.is_suspect |= is_unanswered;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    struct OneShard {
        health: ShardHealth,
        queue: QueueName,
        shard: Shard,
    }

    impl OneShard {
        fn new() -> Self {
            let shard = Shard { generation: 1, number: 0, account: "a".into() };
            Self { health: ShardHealth::default(), queue: QueueName::new("work").unwrap(), shard }
        }

        fn begin(&self, kind: RequestKind) -> Asked {
            self.health.begin(&self.queue, &self.shard, kind)
        }

        fn failed(&self, asked: Asked, kind: StoreErrorKind) {
            self.health.failed(&self.queue, &self.shard, asked, &StoreError::new(kind, "test", &self.queue));
        }

        fn answered(&self, asked: Asked) {
            self.health.answered(&self.queue, &self.shard, asked);
        }

        fn closed_for(&self, kind: RequestKind) -> Duration {
            self.health.closed_for(&self.queue, &self.shard, kind).unwrap_or_default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failures_side_by_side_count_as_one() {
        let shard = OneShard::new();
        let asked = shard.begin(RequestKind::Put);
        for _ in 0..5 {
            advance(Duration::from_millis(1)).await;
            shard.failed(asked, StoreErrorKind::Throttled);
        }
        assert_eq!(shard.closed_for(RequestKind::Put), FIRST_PAUSE);
        advance(FIRST_PAUSE).await;
        shard.failed(shard.begin(RequestKind::Put), StoreErrorKind::Throttled);
        assert_eq!(shard.closed_for(RequestKind::Put), 2 * FIRST_PAUSE);
    }

    #[tokio::test(start_paused = true)]
    async fn throttled_request_of_either_kind_pauses_both() {
        for kind in [RequestKind::Get, RequestKind::Put] {
            let shard = OneShard::new();
            shard.failed(shard.begin(kind), StoreErrorKind::Throttled);
            assert_eq!(shard.closed_for(RequestKind::Get), FIRST_PAUSE);
            assert_eq!(shard.closed_for(RequestKind::Put), FIRST_PAUSE);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answer_to_a_request_before_the_failure_ends_no_pause() {
        for kind in [RequestKind::Get, RequestKind::Put] {
            let shard = OneShard::new();
            let before = shard.begin(kind);
            advance(Duration::from_millis(1)).await;
            shard.failed(shard.begin(kind), StoreErrorKind::Throttled);
            shard.answered(before);
            assert_eq!(shard.closed_for(kind), FIRST_PAUSE);
            shard.answered(shard.begin(kind));
            assert_eq!(shard.closed_for(kind), Duration::ZERO);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failed_put_pauses_no_gets() {
        let shard = OneShard::new();
        shard.failed(shard.begin(RequestKind::Put), StoreErrorKind::Timeout);
        assert_eq!(shard.closed_for(RequestKind::Put), UNANSWERED_PAUSE);
        assert_eq!(shard.closed_for(RequestKind::Get), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn get_that_hangs_pauses_both() {
        let shard = OneShard::new();
        shard.failed(shard.begin(RequestKind::Get), StoreErrorKind::Timeout);
        assert_eq!(shard.closed_for(RequestKind::Get), UNANSWERED_PAUSE);
        assert_eq!(shard.closed_for(RequestKind::Put), UNANSWERED_PAUSE);
    }

    #[tokio::test(start_paused = true)]
    async fn later_failure_does_not_shorten_a_pause() {
        let shard = OneShard::new();
        shard.failed(shard.begin(RequestKind::Get), StoreErrorKind::Timeout);
        shard.failed(shard.begin(RequestKind::Put), StoreErrorKind::Throttled);
        assert_eq!(shard.closed_for(RequestKind::Get), UNANSWERED_PAUSE);
    }
}
