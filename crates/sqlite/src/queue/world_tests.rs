//! Compares two connections to one file, as of two processes, with a naive model. Random transactions commit,
//! fail, or end with their process. Every answer, and the file after every transaction, must match the model.

mod model;

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use rusqlite::{Connection, TransactionBehavior};

use self::model::{Message, Model};
use super::{admin, count, get, index, leased, put};
use crate::batch::Batch;
use crate::clock::{StoreClock, to_instant};
use crate::error::{Applied, Failure};
use crate::known::Known;
use crate::purge;
use crate::reader::View;
use crate::receipt::Presented;
use crate::schema;
use crate::tests::begin;
use jobqueue_storage::clock::ManualClock;
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::{
    ExpiredReceipt, GetMessages, MessageId, MessageRef, MessageState, Metadata, PopReceipt, PutMessage,
    QueueName, StateCounts, StoreErrorKind, UpdateMessage,
};

const QUEUES: usize = 2;
const TRANSACTIONS: u32 = 120;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % limit
    }

    fn seconds(&mut self) -> Duration {
        Duration::from_millis([0, 1, 1_000, 2_000, 2_000, 60_000][self.below(6) as usize])
    }
}

/// A process: its connection, and the state that it remembers.
struct Process {
    connection: Connection,
    clock: StoreClock,
    known: Known,
}

impl Process {
    fn start(file: &Path, clock: &Arc<ManualClock>) -> Self {
        let connection = Connection::open(file).unwrap();
        connection.pragma_update(None, "synchronous", "OFF").unwrap();
        connection.set_prepared_statement_cache_capacity(64);
        let clock = StoreClock::new(Runtime::new().with_clock(Arc::<ManualClock>::clone(clock)));
        Self { connection, clock, known: Known::default() }
    }
}

struct World {
    random: Random,
    clock: Arc<ManualClock>,
    names: [QueueName; QUEUES],
    model: Model,
    /// Every receipt that any transaction was given, including transactions that failed.
    refs: Vec<MessageRef>,
}

fn answer<T>(applied: Applied<T>) -> Result<T, StoreErrorKind> {
    applied.map_err(|failure| match failure {
        Failure::Refused(error) => error.kind(),
        Failure::Sql(error) => panic!("{error}"),
    })
}

fn agree<T: PartialEq + Debug>(found: T, expected: T, what: &str) {
    assert_eq!(found, expected, "{what}: the file, and the model");
}

impl World {
    fn now(&self) -> i64 {
        crate::clock::to_millis(jobqueue_storage::clock::Clock::now(&*self.clock))
    }

    fn pick(&mut self) -> MessageRef {
        let Some(newest) = self.refs.len().checked_sub(1) else {
            return MessageRef { id: MessageId::new("7"), receipt: PopReceipt::new("0".repeat(32)) };
        };
        let back = if self.random.below(4) > 0 { self.random.below(6) } else { self.random.below(60) };
        let mut message = self.refs[newest - (back as usize).min(newest)].clone();
        if self.random.below(12) == 0 {
            message.receipt = self.refs[0].receipt.clone();
        }
        message
    }

    /// Returns one message, or several that were mostly received together, in another order.
    fn pick_some(&mut self) -> Vec<MessageRef> {
        if self.random.below(2) == 0 {
            return vec![self.pick()];
        }
        let last = self.refs.len() as u64;
        let first = last.saturating_sub(self.random.below(12));
        let mut picked = self.refs[first as usize..].to_vec();
        picked.truncate(1 + self.random.below(8) as usize);
        let middle = self.random.below(1 + picked.len() as u64) as usize;
        picked.rotate_left(middle);
        picked
    }

    /// Only the first queue has groups; other queues delete adjacent messages together.
    fn message(&mut self, queue: usize) -> PutMessage {
        let has_group = queue == 0 && self.random.below(4) == 0;
        let group = has_group.then(|| ["a", "b"][self.random.below(2) as usize].to_owned());
        let delay = if self.random.below(3) == 0 { self.random.seconds() } else { Duration::ZERO };
        // An expired message blocks its group until it is removed, which the model does not cover.
        let ttl = (group.is_none() && self.random.below(6) == 0).then(|| Duration::from_secs(2));
        PutMessage::new("text").with_group(group).with_visibility_delay(delay).with_ttl(ttl)
    }

    fn note_put(&mut self, queue: usize, message: &PutMessage, put: MessageRef) {
        let now = self.now();
        self.model.puts += 1;
        let row = Message {
            order: self.model.puts,
            queue,
            visible_at: now + message.visibility_delay.as_millis() as i64,
            expires_at: message.ttl.map(|ttl| now + ttl.as_millis() as i64),
            dequeue_count: 0,
            good_until: None,
            put_back: false,
            group: message.group.clone(),
            receipt: put.receipt.clone(),
        };
        let former = self.model.messages.insert(put.id.clone(), row);
        assert!(former.is_none(), "an id was given twice");
        self.refs.push(put);
    }

    fn operate(&mut self, batch: &mut Batch<'_>) {
        let queue = self.random.below(QUEUES as u64) as usize;
        let (name, now) = (self.names[queue].clone(), self.now());
        let operation = self.random.below(100);
        if operation >= 25 {
            batch.insert_pending().unwrap();
        }
        match operation {
            0..25 => {
                let message = Arc::new(self.message(queue));
                let row = answer(put::put(batch, &name, &message)).unwrap();
                self.note_put(queue, &message, row.outcome().message);
            }
            25..32 => {
                let messages: Vec<_> = (0..self.random.below(24)).map(|_| self.message(queue)).collect();
                let rows = answer(put::put_all(batch, &name, &messages)).unwrap();
                for (message, row) in messages.iter().zip(rows) {
                    self.note_put(queue, message, row.outcome().message);
                }
            }
            32..60 => self.get(batch, queue, now),
            60..75 => self.update(batch, queue, now),
            75..94 => self.delete(batch, queue, now),
            94..98 => {
                let id = self.pick().id;
                let made = answer(index::make_visible(batch, &name, &id)).unwrap();
                let found =
                    self.model.messages.get_mut(&id).filter(|one| one.queue == queue && one.visible_at > now);
                let found = found.filter(|one| one.expires_at.is_none_or(|end| end > now));
                let found = found.filter(|one| one.good_until.is_none() || one.put_back);
                // The receipt of the put-back is valid as long as the message is hidden.
                let shown =
                    found.map(|one| (one.visible_at, one.good_until) = (now, one.good_until.map(|_| now)));
                agree(made, shown.is_some(), "make visible");
            }
            98 => {
                answer(admin::clear(batch, &name)).unwrap();
                self.model.messages.retain(|_, one| one.queue != queue);
            }
            _ => agree(answer(admin::create(batch, &name, &Metadata::new())).map(drop), Ok(()), "create"),
        }
    }

    fn late(&mut self) -> ExpiredReceipt {
        if self.random.below(4) == 0 { ExpiredReceipt::Allow } else { ExpiredReceipt::Refuse }
    }

    fn get(&mut self, batch: &mut Batch<'_>, queue: usize, now: i64) {
        // The port refuses a get without a lease.
        let visibility = self.random.seconds().max(Duration::from_millis(1));
        let count = 1 + self.random.below(20) as u32;
        let options = GetMessages::new(count, visibility);
        let received = answer(get::get(batch, &self.names[queue], options)).unwrap().received();
        let mut visible = self.model.page(queue, MessageState::Waiting, now);
        visible.retain(|id| !self.model.waits(&self.model.messages[id]));
        let is_short = visible.len() < count as usize;
        visible.truncate(count as usize);
        let got: Vec<_> = received.messages.iter().map(|got| got.message.id.clone()).collect();
        agree(got, visible, "get");
        for got in received.messages {
            let found = self.model.messages.get_mut(&got.message.id).unwrap();
            (found.receipt, found.put_back) = (got.message.receipt.clone(), false);
            found.dequeue_count += 1;
            found.visible_at = now + visibility.as_millis() as i64;
            found.good_until = Some(found.visible_at);
            agree(got.dequeue_count, found.dequeue_count, "count of gets");
            self.refs.push(got.message);
        }
        let later = self.model.alive(queue, now).filter(|(_, one)| {
            let lives = one.expires_at.is_none_or(|end| end > one.visible_at);
            one.visible_at > now && lives && !self.model.waits(one)
        });
        let next = later.map(|(_, one)| one.visible_at - now).min();
        let next = next.map(|wait| Duration::from_millis(wait as u64));
        // The time may be too early, since leases end and are renewed.
        match (is_short, received.next_visible_in) {
            (false, answered) => agree(answered, None, "time until the next"),
            (true, Some(answered)) => {
                assert!(
                    !answered.is_zero() && next.is_none_or(|next| answered <= next),
                    "{answered:?}, {next:?}"
                )
            }
            (true, None) => agree(None, next, "time until the next"),
        }
    }

    fn delete(&mut self, batch: &mut Batch<'_>, queue: usize, now: i64) {
        let (messages, late) = (self.pick_some(), self.late());
        let presented: Vec<_> = messages.iter().map(Presented::of).collect();
        let deleted = answer(leased::delete_all(batch, &self.names[queue], &presented, late)).unwrap();
        for (message, deleted) in messages.iter().zip(deleted) {
            let expected = self.model.find(queue, message, late, now).map(drop);
            if expected.is_ok() {
                self.model.messages.remove(&message.id);
            }
            agree(deleted.map_err(|error| error.kind()), expected, "delete");
        }
    }

    fn update(&mut self, batch: &mut Batch<'_>, queue: usize, now: i64) {
        let (message, visibility, late) = (self.pick(), self.random.seconds(), self.late());
        let mut change = UpdateMessage::new(visibility).with_expired(late);
        change.ends_lease = self.random.below(2) == 0;
        let ends_lease = change.ends_lease;
        let updated = leased::update(batch, &self.names[queue], Presented::of(&message), &change);
        let updated = answer(updated).map(|updated| updated.receipt);
        let visible_at = now + visibility.as_millis() as i64;
        let expected = self.model.find(queue, &message, late, now).and_then(|found| {
            if found.expires_at.is_some_and(|end| visible_at > end) {
                return Err(StoreErrorKind::InvalidInput);
            }
            if let Ok(receipt) = &updated {
                (found.receipt, found.visible_at, found.put_back) = (receipt.clone(), visible_at, ends_lease);
                found.good_until = Some(visible_at);
            }
            Ok(())
        });
        agree(updated.clone().map(drop), expected, "update");
        self.refs.extend(updated.ok().map(|receipt| MessageRef { receipt, ..message }));
    }

    /// Runs one transaction of a process, which may end with it.
    fn live(&mut self, process: &mut Process, file: &Path) {
        if self.random.below(3) == 0 {
            self.clock.advance(self.random.seconds());
        }
        let Process { connection, clock, known } = process;
        if self.random.below(8) == 0 {
            while purge::step(connection, clock, known).unwrap_or_else(|_| panic!("purge")).has_more {}
        }
        let before = self.model.clone();
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        let mut batch = begin(connection, clock, std::mem::take(known));
        for _ in 0..=self.random.below(4) {
            self.operate(&mut batch);
        }
        let end = self.random.below(10);
        if end < 2 {
            // The transaction fails, and the process forgets its state.
            drop(batch);
            connection.execute_batch("ROLLBACK").unwrap();
            self.model = before;
        } else {
            *known = batch.finish().unwrap().known;
            connection.execute_batch("COMMIT").unwrap();
        }
        // The process is killed before or after its commit, and starts again.
        if (1..3).contains(&end) {
            *process = Process::start(file, &self.clock);
        }
    }

    /// Compares the whole file with the model, on a separate connection.
    fn compare(&self, file: &Path) {
        let mut connection = Connection::open(file).unwrap();
        let now = self.now();
        let connection = connection.transaction_with_behavior(TransactionBehavior::Deferred).unwrap();
        let view = View { connection, now };
        for (queue, name) in self.names.iter().enumerate() {
            let mut expected = StateCounts { now: Some(to_instant(now)), ..StateCounts::default() };
            let (mut oldest_backing_off, mut oldest_held_up) = (None, None);
            for (state, number) in [
                (MessageState::Waiting, &mut expected.waiting),
                (MessageState::Delayed, &mut expected.delayed),
                (MessageState::Running, &mut expected.running),
                (MessageState::BackingOff, &mut expected.backing_off),
            ] {
                let ids = self.model.page(queue, state, now);
                *number = ids.len() as u64;
                let (mut shown, mut from) = (Vec::new(), None::<String>);
                loop {
                    let page = answer(index::messages(&view, name, state, from.as_deref(), 7)).unwrap();
                    if state == MessageState::BackingOff {
                        let times = page.messages.iter().map(|(message, _)| message.inserted);
                        oldest_backing_off = oldest_backing_off.into_iter().chain(times).min();
                    }
                    let is_delayed =
                        |message: &Message| message.good_until.is_none() && message.visible_at > now;
                    let held_up = page.messages.iter().rev().take(page.waiting_for_group);
                    let held_up =
                        held_up.filter(|(message, _)| !is_delayed(&self.model.messages[&message.id]));
                    oldest_held_up = held_up.map(|(message, _)| message.inserted).chain(oldest_held_up).min();
                    shown.extend(page.messages.into_iter().map(|(message, _)| message.id));
                    from = page.next;
                    if from.is_none() {
                        break;
                    }
                }
                agree(shown, ids, &format!("{state:?} in {name}"));
            }
            (expected.oldest_backing_off, expected.oldest_held_up) = (oldest_backing_off, oldest_held_up);
            agree(answer(count::by_state(&view, name)).unwrap(), expected, "counts");
        }
    }
}

fn run(seed: u64) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jobs.db");
    let clock = Arc::new(ManualClock::at(UNIX_EPOCH + Duration::from_secs(1_000)));
    let mut processes = [Process::start(&file, &clock), Process::start(&file, &clock)];
    processes[0].connection.pragma_update(None, "journal_mode", "wal").unwrap();
    schema::prepare(&mut processes[0].connection).unwrap();
    let names = ["first", "second"].map(|name| name.parse().unwrap());
    for name in &names {
        let Process { connection, clock, .. } = &processes[0];
        let mut batch = begin(connection, clock, Known::default());
        answer(admin::create(&mut batch, name, &Metadata::new())).unwrap();
        batch.finish().unwrap();
    }
    let random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut world = World { random, clock, names, model: Model::default(), refs: Vec::new() };
    for _ in 0..TRANSACTIONS {
        let process = &mut processes[world.random.below(2) as usize];
        world.live(process, &file);
        world.compare(&file);
    }
}

/// `JOBQUEUE_SEEDS=1000-9000` selects other seeds.
#[test]
fn two_processes_answer_as_the_model_does() {
    let seeds = std::env::var("JOBQUEUE_SEEDS").ok();
    let seeds = seeds.as_deref().and_then(|seeds| seeds.split_once('-')).unwrap_or(("1", "16"));
    for seed in seeds.0.parse().unwrap()..seeds.1.parse().unwrap() {
        println!("seed {seed}");
        run(seed);
    }
}
