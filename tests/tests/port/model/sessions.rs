//! Random operations on a queue that requires sessions, by two processes, judged by a model of what order
//! means: each group in order, one message at a time, nothing lost, and every delivery counted.
//!
//! Links, sessions and connections are ended at random, locks run out, and processes are killed. Strikes come
//! between requests, so that a lease that may be lost is known as such; whether it is lost, the answer of the
//! service says. The storage in memory has no groups, so that the model is written here.

mod messages;
mod strikes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant, SystemTime};

use jobqueue::QueueName;
use jobqueue::Storage;
use jobqueue::storage::*;
use jobqueue_test_support::servicebus::ServiceBus;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use messages::{Answer, Lease, Message, again};

const ROUNDS: usize = 2;
/// The steps of a round without strikes, and of one with them.
const STEPS: [usize; 2] = [120, 60];
const GROUPS: [&str; 4] = ["a", "b", "c", "d"];
const LOCK: Duration = Duration::from_secs(60);
/// By the machine's clock, by which the adapter holds sessions.
const DELAY: Duration = Duration::from_millis(250);
/// The time in which a process may still return a message that came before its session was struck.
const SHAKEN: Duration = Duration::from_secs(3);
/// The processes.
const TWO: usize = 2;

struct World {
    emulator: ServiceBus,
    blobs: Storage,
    processes: Vec<Storage>,
    queue: QueueName,
    groups: BTreeMap<String, VecDeque<Message>>,
    leases: BTreeMap<String, Lease>,
    /// Leases that were lost, or whose message was given back.
    stale: Vec<(String, Lease)>,
    dead: BTreeMap<String, String>,
    /// Groups by the first text of their messages; later texts begin with it.
    home: BTreeMap<String, String>,
    random: StdRng,
    last: u32,
    /// The time of the last strike.
    shaken: Option<Instant>,
    /// The links that the client has ended by a detach that was late.
    unattached: u64,
}

#[tokio::test]
async fn sessions_keep_the_order_of_each_group() {
    let mut world = World::open(jobqueue_tests::seed());
    for _ in 0..ROUNDS {
        for (is_wild, steps) in [false, true].into_iter().zip(STEPS) {
            for _ in 0..steps {
                world.step(is_wild).await;
            }
        }
        // Processes have heard of the strikes then, and what they return is leased for certain.
        tokio::time::sleep(SHAKEN).await;
    }
    world.work_off().await;
    world.check_dead_letters().await;
}

impl World {
    fn open(seed: u64) -> Self {
        let emulator = ServiceBus::start_with(&["--checks-tokens", "false"]);
        emulator.create_queue(
            "work",
            json!({ "RequiresSession": true, "RequiresDuplicateDetection": true, "LockDuration": "PT60S", "MaxDeliveryCount": 2000 }),
        );
        let mut world = Self {
            emulator,
            blobs: Storage::memory(),
            processes: Vec::new(),
            queue: QueueName::new("work").unwrap(),
            groups: BTreeMap::new(),
            leases: BTreeMap::new(),
            stale: Vec::new(),
            dead: BTreeMap::new(),
            home: BTreeMap::new(),
            random: StdRng::seed_from_u64(seed),
            last: 0,
            shaken: None,
            unattached: 0,
        };
        world.processes = (0..TWO).map(|_| world.process()).collect();
        world
    }

    fn waiting(&self) -> usize {
        self.groups.values().map(VecDeque::len).sum()
    }

    async fn step(&mut self, is_wild: bool) {
        match self.random.random_range(0..100) {
            0..28 if self.waiting() < 30 => self.put().await,
            0..52 => self.get().await,
            52..70 => self.end(false).await,
            70..75 => self.end(true).await,
            75..84 => self.give_back().await,
            84..88 => self.keep().await,
            88..90 => self.peek().await,
            90..92 => self.use_a_stale_receipt().await,
            92..94 => self.redrive().await,
            94..96 if is_wild => self.strike(),
            96..98 if is_wild => self.expire(),
            98..100 if is_wild => self.kill(),
            _ => {}
        }
    }

    fn pick(&mut self) -> Option<(String, Lease)> {
        let at = self.random.random_range(0..self.leases.len().max(1));
        self.leases.iter().nth(at).map(|(group, lease)| (group.clone(), lease.clone()))
    }

    fn head(&mut self, group: &str) -> &mut Message {
        self.groups.get_mut(group).unwrap().front_mut().unwrap()
    }

    async fn put(&mut self) {
        self.last += 1;
        let (number, process) = (self.last, self.random.random_range(0..TWO));
        let group = match self.random.random_range(0..GROUPS.len() + 1) {
            at if at < GROUPS.len() => Some(GROUPS[at].to_owned()),
            _ => None,
        };
        let text = format!("{}-{number}", group.as_deref().unwrap_or("alone"));
        self.put_text(process, group, &text, &format!("id {number}")).await;
    }

    async fn put_text(&mut self, process: usize, group: Option<String>, text: &str, id: &str) {
        let put = || PutMessage::new(text).with_group(group.clone()).with_job("/test", id);
        let queues = self.processes[process].queues();
        again(async || queues.put(&self.queue, put()).await).await.0.unwrap();
        let group = group.unwrap_or_else(|| format!("/test {id}"));
        self.home.insert(text.to_owned(), group.clone());
        let message = Message::new(vec![text.to_owned()], 0);
        self.groups.entry(group).or_default().push_back(message);
    }

    async fn get(&mut self) {
        let process = self.random.random_range(0..TWO);
        let count = self.random.random_range(1..=4);
        self.get_by(process, count).await;
    }

    async fn get_by(&mut self, process: usize, count: u32) {
        let queues = self.processes[process].queues().clone();
        let got = again(async || queues.get(&self.queue, GetMessages::new(count, LOCK)).await).await.0;
        for leased in got.unwrap().messages {
            // Whether it is lost already, a renewal says mostly; a detach may still be on its way.
            let may_be_lost = self.shaken.is_some_and(|at| at.elapsed() < SHAKEN);
            if may_be_lost {
                let renew =
                    async || queues.update(&self.queue, &leased.message, UpdateMessage::new(LOCK)).await;
                if again(renew).await.0.is_err_and(|error| error.is_lease_lost()) {
                    continue;
                }
            }
            self.judge(process, leased, may_be_lost);
        }
    }

    /// Judges a delivery, and notes its lease.
    fn judge(&mut self, process: usize, leased: LeasedMessage, may_be_lost: bool) {
        let text = leased.text.unwrap();
        let first = text.split('+').next().unwrap();
        let group = self.home[first].clone();
        if let Some(lease) = self.leases.remove(&group) {
            let is_lost = lease.may_be_lost || self.was_shaken_by_client();
            assert!(is_lost, "two of {group} at once: {text} beside {lease:?}");
            self.stale.push((group.clone(), lease));
        }
        let messages = self.groups.get_mut(&group).unwrap();
        while messages.front().is_some_and(|head| head.may_be_gone && !head.texts.contains(&text)) {
            messages.pop_front();
        }
        let head = messages.front_mut().unwrap_or_else(|| panic!("{text} came although it had ended"));
        assert!(head.texts.contains(&text), "{text} of {group} came, and not {head:?}");
        let now = SystemTime::now();
        assert!(head.not_before.is_none_or(|at| at <= now), "{text} came before its delay was over");
        assert!(leased.dequeue_count > head.deliveries, "{text}: {} after {head:?}", leased.dequeue_count);
        let deliveries = head.deliveries + 1;
        *head = Message::new(vec![text.clone()], deliveries);
        self.leases.insert(group, Lease { process, message: leased.message, text, may_be_lost });
    }

    /// Returns what an answer says of the lease; forgets a lease that is lost.
    fn answered<T>(&mut self, group: &str, lease: Lease, answer: (Result<T, StoreError>, bool)) -> Answer {
        match answer {
            (Ok(_), _) => Answer::Done,
            (Err(error), was_in_doubt) => {
                let may_be_lost = lease.may_be_lost || self.was_shaken_by_client();
                assert!(error.is_lease_lost() && may_be_lost, "{group}: {lease:?}: {error:?}");
                self.leases.remove(group);
                self.stale.push((group.to_owned(), lease));
                if was_in_doubt { Answer::Unknown } else { Answer::Lost }
            }
        }
    }

    /// Completes a message, or dead-letters it.
    async fn end(&mut self, as_dead: bool) {
        let Some((group, lease)) = self.pick() else { return };
        let queues = self.processes[lease.process].queues().clone();
        let cause = DeadLetterCause::new("rejected");
        let letter = || DeadLetterMessage::new(lease.text.clone(), cause.clone());
        let ended = again(async || match as_dead {
            true => queues.dead_letter(&self.queue, &lease.message, letter()).await,
            false => queues.delete(&self.queue, &lease.message, ExpiredReceipt::Refuse).await,
        });
        let ended = ended.await;
        match self.answered(&group, lease.clone(), ended) {
            Answer::Done => {
                self.leases.remove(&group);
                self.groups.get_mut(&group).unwrap().pop_front();
                if as_dead {
                    self.dead.insert(lease.text, group);
                }
            }
            Answer::Unknown => self.head(&group).may_be_gone = true,
            Answer::Lost => {}
        }
    }

    /// Gives a message back at once or later, with another text now and then.
    async fn give_back(&mut self) {
        let Some((group, lease)) = self.pick() else { return };
        let text = self.random.random_bool(0.5).then(|| self.longer(&lease.text));
        let delay = if self.random.random_bool(0.4) { DELAY } else { Duration::ZERO };
        let change = UpdateMessage::new(delay).with_text(text.clone()).ending_lease();
        let at = SystemTime::now() + delay;
        let answer = self.change(&group, &lease, change).await;
        // A request that is made again begins the delay anew.
        self.head(&group).hidden_until = SystemTime::now() + delay;
        if answer == Answer::Done {
            self.leases.remove(&group);
            // The service counts in milliseconds.
            self.head(&group).not_before =
                (!delay.is_zero()).then(|| at.checked_sub(Duration::from_millis(2)).unwrap());
            self.stale.push((group.clone(), lease));
        }
        self.note_text(&group, text, answer);
    }

    /// Renews a lock, and saves another text now and then.
    async fn keep(&mut self) {
        let Some((group, lease)) = self.pick() else { return };
        let text = self.random.random_bool(0.5).then(|| self.longer(&lease.text));
        let answer = self.change(&group, &lease, UpdateMessage::new(LOCK).with_text(text.clone())).await;
        if answer == Answer::Done
            && let Some(text) = &text
        {
            self.leases.get_mut(&group).unwrap().text.clone_from(text);
        }
        self.note_text(&group, text, answer);
    }

    fn longer(&mut self, text: &str) -> String {
        self.last += 1;
        format!("{text}+{}", self.last)
    }

    async fn change(&mut self, group: &str, lease: &Lease, change: UpdateMessage) -> Answer {
        let queues = self.processes[lease.process].queues().clone();
        let updated = again(async || queues.update(&self.queue, &lease.message, change.clone()).await).await;
        self.answered(group, lease.clone(), updated)
    }

    fn note_text(&mut self, group: &str, text: Option<String>, answer: Answer) {
        let head = self.head(group);
        match answer {
            Answer::Done => head.texts = text.map_or_else(|| head.texts.clone(), |text| vec![text]),
            // The text is written before the message is given back.
            Answer::Unknown | Answer::Lost => head.texts.extend(text),
        }
    }

    /// Whoever has lost a message can do nothing with it.
    async fn use_a_stale_receipt(&mut self) {
        let at = self.random.random_range(0..self.stale.len().max(1));
        let Some((group, lease)) = self.stale.get(at).cloned() else { return };
        let queues = self.processes[lease.process].queues();
        let deleted =
            again(async || queues.delete(&self.queue, &lease.message, ExpiredReceipt::Refuse).await);
        let deleted = deleted.await.0;
        assert!(deleted.is_err_and(|error| error.is_lease_lost()), "a stale receipt of {group}: {lease:?}");
    }

    /// A peek shows all messages, with or without a lease, but those that wait for the end of a delay.
    async fn peek(&mut self) {
        let queues = self.processes[self.random.random_range(0..TWO)].queues();
        let now = SystemTime::now();
        let peeked = again(async || queues.peek(&self.queue, 32).await).await.0.unwrap();
        let is_unsure = |message: &&Message| message.may_be_gone || message.hidden_until > now;
        let unsure = self.groups.values().flatten().filter(is_unsure).count();
        let most = self.waiting();
        assert!((most - unsure..=most).contains(&peeked.len()), "{} of {most}", peeked.len());
    }

    /// Puts a dead letter back into its group, where it comes last.
    async fn redrive(&mut self) {
        let process = self.random.random_range(0..TWO);
        let dead = self.queue.dead_letter().unwrap();
        let queues = self.processes[process].queues().clone();
        let got = again(async || queues.get(&dead, GetMessages::new(1, LOCK)).await).await.0.unwrap();
        let Some(letter) = got.messages.into_iter().next() else { return };
        let text = letter.text.unwrap();
        let group = self.dead.remove(&text).unwrap_or_else(|| panic!("{text} is no dead letter"));
        assert_eq!(letter.group.as_deref(), Some(&*group), "the group of a dead letter");
        self.last += 1;
        let (id, text) = (format!("redriven {}", self.last), format!("{group}-{}", self.last));
        self.put_text(process, Some(group), &text, &id).await;
        let delete = async || queues.delete(&dead, &letter.message, ExpiredReceipt::Refuse).await;
        again(delete).await.0.unwrap();
    }

    /// Completes all that is left.
    async fn work_off(&mut self) {
        let begun = Instant::now();
        while self.waiting() > 0 {
            assert!(begun.elapsed() < Duration::from_secs(120), "left: {:?}", self.groups);
            while !self.leases.is_empty() {
                self.end(false).await;
            }
            for process in 0..TWO {
                self.get_by(process, 4).await;
            }
            if self.emulator.queue("work")["counts"]["active"] == 0 {
                self.groups.values_mut().for_each(|messages| messages.retain(|message| !message.may_be_gone));
                assert_eq!(self.waiting(), 0, "lost: {:?}", self.groups);
            }
        }
        assert_eq!(self.emulator.queue("work")["counts"]["active"], 0);
    }

    /// All dead letters are there, each once.
    async fn check_dead_letters(&mut self) {
        let dead = self.queue.dead_letter().unwrap();
        let queues = self.processes[0].queues();
        let peeked = again(async || queues.peek(&dead, 32).await).await.0.unwrap();
        let texts: BTreeSet<_> = peeked.iter().map(|letter| letter.text.clone().unwrap()).collect();
        assert_eq!(peeked.len(), texts.len());
        for text in self.dead.keys() {
            assert!(texts.contains(text), "{text} is lost");
        }
    }
}
