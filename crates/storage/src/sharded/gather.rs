//! Fills a get from many shards: divides the count among them, and joins their answers.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout};

use super::map::Shard;
use super::place::outer_id;
use super::shard_health::RequestKind;
use super::store::{CONCURRENT_GETS, ShardedQueues};
use super::turns::GetTurn;
use crate::name::QueueName;
use crate::{GetMessages, LeasedMessage, Received, StoreError, StoreErrorKind as K};

/// The maximum wait for a shard that does not answer, for which the other shards of its wave wait too.
/// Messages that the shard leased nevertheless become visible again when their lease ends.
const SHARD_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum wait for a shard that did not answer last time; doubles with each failure up to the time
/// above.
const SUSPECT_TIMEOUT: Duration = Duration::from_secs(1);
/// A get waits for silent shards for at most the lease divided by this number, since the leases of messages
/// already received are not renewed yet.
const LEASE_DIVISOR: u32 = 3;

impl ShardedQueues {
    /// Gets messages from all shards that may be asked, a share from each, but from at most one suspect
    /// shard. The get ends early once it has waited for silent shards and has messages; after a part of the
    /// lease, one of the two is enough. The next get then asks the remaining shards first.
    pub(super) async fn gather(
        &self,
        queue: &QueueName,
        options: GetMessages,
    ) -> Result<Received, StoreError> {
        let requested = Instant::now();
        let mut shards = self.readable_shards(queue).await?;
        let turn = self.turns.get(queue);
        let first = turn.place % shards.len().max(1);
        shards.rotate_left(first);
        let mut all = Gathered::default();
        let mut waiting = self.askable(queue, shards, turn, &mut all);
        let (began, limit, mut asked) = (Instant::now(), options.visibility / LEASE_DIVISOR, 0);
        while !waiting.is_empty() && all.messages.len() < options.count as usize {
            let left = options.count as usize - all.messages.len();
            let wave: Vec<_> = waiting.drain(..CONCURRENT_GETS.min(left).min(waiting.len())).collect();
            let width = wave.len();
            // Each shard gets a fair share; the sum of the shares does not exceed the requested count.
            let share = |place: usize| (left / width + usize::from(place < left % width)) as u32;
            let late = requested.elapsed();
            let gets = wave.into_iter().enumerate().map(|(place, shard)| {
                self.get_from(queue, shard, GetMessages { count: share(place), ..options }, limit)
            });
            for (place, (shard, got)) in join_all(gets.collect::<Vec<_>>()).await.into_iter().enumerate() {
                let got = got.map(|received| counted_from(late, options.visibility, received));
                if all.add(&shard, share(place), got) {
                    waiting.push_back(shard);
                }
            }
            asked += width;
            // The messages received so far are not renewed yet: slow answers use up their leases, as missing
            // answers do.
            let (is_late, has_some) = (began.elapsed() >= limit, !all.messages.is_empty());
            if !waiting.is_empty() && (is_late && (all.has_waited || has_some) || all.has_waited && has_some)
            {
                self.turns.skip_asked(queue, asked);
                all.soonest(Some(Duration::ZERO));
                all.is_cut = true;
                all.is_partial = true;
                break;
            }
        }
        self.gathered(queue, all, options.count as usize)
    }

    /// Returns the messages received; an error if no shard has served the get.
    fn gathered(&self, queue: &QueueName, all: Gathered, count: usize) -> Result<Received, StoreError> {
        match all.error {
            Some(error) if error.kind() == K::QueueNotFound && all.messages.is_empty() => {
                self.maps.forget(queue);
                Err(error)
            }
            Some(error)
                if all.messages.is_empty() && (all.answers == 0 && !all.is_cut || !error.is_retryable()) =>
            {
                // No shard can serve the get now: the shards that were not asked have failed before.
                Err(error.with_of_part(false))
            }
            _ => {
                let enough = all.messages.len() == count;
                let received = Received::new(all.messages).with_next_visible_in(all.next.filter(|_| !enough));
                Ok(received.with_uncertainty(all.is_uncertain).with_missing_part(all.is_partial))
            }
        }
    }

    /// Returns the shards that may be asked now, and records when the others may be asked.
    fn askable(
        &self,
        queue: &QueueName,
        shards: Vec<Shard>,
        turn: GetTurn,
        all: &mut Gathered,
    ) -> VecDeque<Shard> {
        let health = &self.maps.health;
        let mut suspect = None;
        let mut askable = VecDeque::new();
        for shard in shards {
            if let Some(wait) = health.closed_for(queue, &shard, RequestKind::Get) {
                all.soonest(Some(wait));
                all.is_partial = true;
            } else if health.unanswered_gets(queue, &shard).is_none() {
                askable.push_back(shard);
            } else if suspect.is_some() {
                all.soonest(Some(SUSPECT_TIMEOUT));
                all.is_partial = true;
            } else {
                suspect = Some(shard);
            }
        }
        match suspect {
            Some(shard) if turn.asks_suspect_first => askable.push_front(shard),
            suspect => askable.extend(suspect),
        }
        askable
    }

    async fn get_from(
        &self,
        queue: &QueueName,
        shard: Shard,
        options: GetMessages,
        limit: Duration,
    ) -> (Shard, Result<Received, StoreError>) {
        let doubled = |failures: u32| SUSPECT_TIMEOUT.saturating_mul(1 << (failures - 1).min(10));
        let health = &self.maps.health;
        let unanswered = health.unanswered_gets(queue, &shard);
        let answer_timeout = unanswered.map_or(SHARD_TIMEOUT, doubled).min(SHARD_TIMEOUT).min(limit);
        let asked = health.begin(queue, &shard, RequestKind::Get);
        let got = async {
            let (storage, physical) = self.maps.locate(queue, &shard)?;
            let expired = |_| StoreError::new(K::Timeout, "get messages", &physical).with_ambiguous(true);
            timeout(answer_timeout, storage.queues.get(&physical, options)).await.map_err(expired)?
        };
        let got = got.await;
        match &got {
            Ok(_) => health.answered(queue, &shard, asked),
            Err(error) => health.failed(queue, &shard, asked, error),
        }
        (shard, got)
    }
}

/// Counts the leases of an answer from the start of the whole get, as the caller does.
fn counted_from(late: Duration, asked: Duration, mut received: Received) -> Received {
    for message in &mut received.messages {
        message.granted = Some(message.granted.unwrap_or(asked) + late);
    }
    received
}

/// The joined answers of several gets.
#[derive(Default)]
struct Gathered {
    messages: Vec<LeasedMessage>,
    next: Option<Duration>,
    error: Option<StoreError>,
    answers: usize,
    is_uncertain: bool,
    /// True if a shard did not answer in time.
    has_waited: bool,
    /// True if shards were left out for this reason.
    is_cut: bool,
    /// True if a shard was not asked or failed.
    is_partial: bool,
}

impl Gathered {
    fn soonest(&mut self, wait: Option<Duration>) {
        self.next = [self.next, wait].into_iter().flatten().min();
    }

    /// Adds the answer of a shard; returns whether the shard may have more messages.
    fn add(&mut self, shard: &Shard, asked: u32, got: Result<Received, StoreError>) -> bool {
        match got {
            Ok(received) => {
                self.answers += 1;
                self.is_uncertain |= received.is_uncertain;
                self.is_partial |= received.is_partial;
                self.soonest(received.next_visible_in);
                let full = received.messages.len() == asked as usize;
                self.messages.extend(received.messages.into_iter().map(|mut message| {
                    message.message.id = outer_id(shard, &message.message.id);
                    message.original_id = message.original_id.map(|id| outer_id(shard, &id));
                    message
                }));
                full
            }
            // A missing shard holds no messages, as long as the home queue exists.
            Err(e) if e.kind() == K::QueueNotFound && shard.generation > 0 => false,
            Err(e) => {
                self.has_waited |= e.kind() == K::Timeout;
                self.is_partial = true;
                // A failure that waiting does not repair must not look like an empty shard.
                if self.error.as_ref().is_none_or(|first| first.is_retryable()) {
                    self.error = Some(e);
                }
                false
            }
        }
    }
}
