//! The same comparison with Service Bus on the emulator, over links, sessions and connections that are ended
//! at random.
//!
//! Both sides have a clock of their own that passes only when the test moves it. The differences that the
//! adapter declares are taken out before answers are compared:
//! - a lock has one length, so that every get and every renewal asks for that;
//! - an earlier receipt stays valid after a renewal, and no receipt is valid after a message was given back:
//!   the receipts that only one side takes are not used;
//! - the receipt of a put cancels a delayed message only;
//! - an expired lock is refused;
//! - a peek shows leased messages too, and clearing a queue leaves them;
//! - dead letters are in a queue of the service, and a storage in memory has none of that kind: a list stands
//!   for it.
//!
//! Time to live is left to `conformance`: the adapter reckons it by the machine's clock, which this test
//! leaves behind.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jobqueue::clock::ManualClock;
use jobqueue::servicebus::Options;
use jobqueue::settings::Metadata;
use jobqueue::storage::*;
use jobqueue::{QueueName, Runtime, Storage, memory};
use jobqueue_test_support::servicebus::{ServiceBus, is_excluded};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

const ROUNDS: usize = 4;
const STEPS: usize = 120;
const LOCK: Duration = Duration::from_secs(60);
/// No sum of these steps is the length of a lock.
const STEP: Duration = Duration::from_secs(25);
const DAY: Duration = Duration::from_secs(86_400);
const ENDS: [&str; 4] = ["detach", "end-session", "close-connection", "abort"];

/// A message with a receipt that both sides know.
#[derive(Clone)]
struct Known {
    text: String,
    refs: [MessageRef; 2],
    /// True for the receipt of a put with a delay; the others are those of leases.
    is_delayed: bool,
}

/// Memory, and Service Bus.
struct Two {
    sides: [Storage; 2],
    clock: Arc<ManualClock>,
    emulator: ServiceBus,
    queue: QueueName,
    known: Vec<Known>,
    dead: BTreeSet<String>,
    /// True if a link was ended since the clocks were moved.
    has_struck: bool,
    random: StdRng,
}

#[tokio::test]
async fn service_bus_answers_as_memory_does() {
    if is_excluded("servicebus::service_bus_answers_as_memory_does") {
        return;
    }
    let mut two = Two::open(jobqueue_tests::seed()).await;
    for round in 0..ROUNDS {
        // The adapter tells the service when a delay ends by the machine's clock.
        two.emulator.stop_clock();
        for step in 0..STEPS {
            two.step(format!("{round}-{step} ü\r\n<&>")).await;
            two.count().await;
        }
        two.advance(2 * DAY);
        // Whatever was delayed is there, whatever was leased is back.
        two.known.clear();
        two.get().await;
        two.advance(2 * LOCK);
        two.known.clear();
    }
    two.dead_letters().await;
}

impl Two {
    async fn open(seed: u64) -> Self {
        // The emulator ends tokens when its clock is moved past their time; the machine's clock stays before
        // it.
        let emulator = ServiceBus::start_with(&["--checks-tokens", "false"]);
        let queue = QueueName::new("work").unwrap();
        emulator.create_queue("work", json!({ "LockDuration": "PT60S", "MaxDeliveryCount": 2000 }));
        let clock = Arc::new(ManualClock::new());
        let options = Options::from_connection_string(emulator.connection_string()).unwrap();
        let subject = Storage::from(options.with_blobs_of(Storage::memory()).unwrap());
        let sides = [memory::open_on(Runtime::new().with_clock(clock.clone())), subject];
        sides[0].queues().create_queue(&queue, &Metadata::new()).await.unwrap();
        let (known, dead, random) = (Vec::new(), BTreeSet::new(), StdRng::seed_from_u64(seed));
        Self { sides, clock, emulator, queue, known, dead, has_struck: false, random }
    }

    async fn step(&mut self, text: String) {
        match self.random.random_range(0..100) {
            0..25 if self.count().await < 30 => self.put(text).await,
            0..42 => self.get().await,
            42..48 => self.pass(),
            48..60 => self.keep(text).await,
            60..72 => self.give_back(text).await,
            72..84 => self.delete().await,
            84..88 => self.dead_letter(text).await,
            88..93 => self.peek().await,
            93..98 => self.strike(),
            _ => self.clear().await,
        }
    }

    fn advance(&self, by: Duration) {
        self.clock.advance(by);
        self.emulator.advance(by);
    }

    /// Moves the clocks. The adapter renews the locks of a link that has ended, at a moment that the test
    /// does not see, so all leases end with the first step after that.
    fn pass(&mut self) {
        if std::mem::take(&mut self.has_struck) {
            self.advance(2 * LOCK);
            self.known.retain(|known| known.is_delayed);
        } else {
            self.advance(STEP);
        }
    }

    /// Ends links of the queue or all, or what carries them.
    fn strike(&mut self) {
        self.has_struck = true;
        let entity = self.random.random_bool(0.5).then_some("work");
        let end = ENDS[self.random.random_range(0..ENDS.len())];
        self.emulator.strike(end, entity);
    }

    async fn put(&mut self, text: String) {
        let is_delayed = self.random.random_bool(0.2);
        let delay = if is_delayed { DAY } else { Duration::ZERO };
        let mut refs = Vec::new();
        for side in &self.sides {
            let message = || PutMessage::new(text.clone()).with_visibility_delay(delay);
            let put = again(async || side.queues().put(&self.queue, message()).await).await;
            refs.push(put.unwrap().message);
        }
        if is_delayed {
            self.known.push(Known { text, refs: refs.try_into().unwrap(), is_delayed });
        }
    }

    async fn get(&mut self) {
        let mut got = Vec::new();
        for side in &self.sides {
            let options = GetMessages::new(32, LOCK);
            let received = again(async || side.queues().get(&self.queue, options).await).await;
            let mut messages = received.unwrap().messages;
            messages.sort_by_key(|message| message.text.clone());
            got.push(messages);
        }
        let seen = |messages: &[LeasedMessage]| -> Vec<_> {
            messages.iter().map(|message| (message.text.clone().unwrap(), message.dequeue_count)).collect()
        };
        assert_eq!(seen(&got[1]), seen(&got[0]));
        for (memory, subject) in got[0].iter().zip(&got[1]) {
            let refs = [memory.message.clone(), subject.message.clone()];
            let text = memory.text.clone().unwrap();
            self.known.push(Known { text, refs, is_delayed: false });
        }
    }

    /// Picks a receipt, mostly a new one: of a lease unless `delayed` ones will do as well.
    fn pick(&mut self, delayed: bool) -> Option<usize> {
        let fit: Vec<_> = (0..self.known.len()).filter(|at| delayed || !self.known[*at].is_delayed).collect();
        let newest = fit.len().checked_sub(1)?;
        let oldest = if self.random.random_bool(0.8) { 5 } else { 100 };
        Some(fit[newest - self.random.random_range(0..=newest.min(oldest))])
    }

    /// Changes a message on both sides; returns its receipts if both did it.
    async fn update(&self, known: &Known, change: UpdateMessage) -> Option<[MessageRef; 2]> {
        let mut answers = Vec::new();
        for (side, message) in self.sides.iter().zip(&known.refs) {
            let updated =
                again(async || side.queues().update(&self.queue, message, change.clone()).await).await;
            let receipt = updated.map(|updated| updated.receipt);
            answers.push(receipt.map(|receipt| MessageRef { id: message.id.clone(), receipt }));
        }
        Some(agreed(answers)?.try_into().unwrap())
    }

    /// Renews a lock, and saves another text now and then.
    async fn keep(&mut self, text: String) {
        let Some(at) = self.pick(false) else { return };
        let text = self.random.random_bool(0.5).then_some(text);
        let change = UpdateMessage::new(LOCK).with_text(text.clone());
        let known = self.known[at].clone();
        if let Some(refs) = self.update(&known, change).await {
            // Memory refuses the earlier receipts of this lease from now on, and Service Bus has no others.
            self.known.retain(|other| other.refs[1] != known.refs[1]);
            self.known.push(Known { text: text.unwrap_or(known.text), refs, is_delayed: false });
        }
    }

    /// Makes a message visible at once or later, with another text now and then.
    async fn give_back(&mut self, text: String) {
        let Some(at) = self.pick(false) else { return };
        let text = self.random.random_bool(0.5).then_some(text);
        let delay = if self.random.random_bool(0.3) { DAY } else { Duration::ZERO };
        let known = self.known[at].clone();
        let change = UpdateMessage::new(delay).with_text(text).ending_lease();
        if self.update(&known, change).await.is_some() {
            self.known.retain(|other| other.refs[1] != known.refs[1]);
        }
    }

    async fn delete(&mut self) {
        let Some(at) = self.pick(true) else { return };
        let known = self.known[at].clone();
        self.delete_on_both(&known).await;
    }

    async fn delete_on_both(&self, known: &Known) {
        let mut answers = Vec::new();
        for (side, message) in self.sides.iter().zip(&known.refs) {
            let refuse = ExpiredReceipt::Refuse;
            answers.push(again(async || side.queues().delete(&self.queue, message, refuse).await).await);
        }
        agreed(answers);
    }

    /// Dead-letters a message with a text of its own; on the side of the memory a list takes it.
    async fn dead_letter(&mut self, text: String) {
        let Some(at) = self.pick(false) else { return };
        let [memory, subject] = self.known[at].refs.clone();
        let [queues, others] = self.sides.each_ref().map(|side| side.queues());
        let deleted = queues.delete(&self.queue, &memory, ExpiredReceipt::Refuse).await;
        let cause = DeadLetterCause::new("rejected").with_description(Some("by the model".to_owned()));
        let letter = || DeadLetterMessage::new(text.clone(), cause.clone());
        let dead = again(async || others.dead_letter(&self.queue, &subject, letter()).await).await;
        if agreed(vec![deleted, dead]).is_some() {
            self.dead.insert(text);
        }
    }

    /// Memory shows what is visible, Service Bus what is leased as well.
    async fn peek(&self) {
        let mut seen = Vec::new();
        for side in &self.sides {
            let peeked = again(async || side.queues().peek(&self.queue, 32).await).await.unwrap();
            // Not by text: one that was saved under a lock is in a blob, which a peek does not read.
            seen.push(peeked);
        }
        let states = self.sides[0].queues().counts_by_state(&self.queue).await.unwrap().unwrap();
        let delayed = states.delayed + states.backing_off;
        assert_eq!(seen[0].len() as u64, states.waiting, "{states:?}");
        assert_eq!(seen[1].len() as u64, states.total() - delayed, "{states:?}");
    }

    /// Clears the queue when no lease is held, because only memory would end it.
    async fn clear(&mut self) {
        for known in std::mem::take(&mut self.known) {
            if !known.is_delayed {
                self.delete_on_both(&known).await;
            }
        }
        for side in &self.sides {
            again(async || side.queues().clear(&self.queue).await).await.unwrap();
        }
        assert_eq!(self.count().await, 0);
    }

    async fn count(&self) -> u64 {
        let mut counts = Vec::new();
        for side in &self.sides {
            let properties = again(async || side.queues().queue_properties(&self.queue).await).await;
            counts.push(properties.unwrap().approximate_count);
        }
        assert_eq!(counts[1], counts[0]);
        counts[0]
    }

    /// All dead letters are there, each once, with its text.
    async fn dead_letters(&self) {
        let dead = self.queue.dead_letter().unwrap();
        let mut found = Vec::new();
        loop {
            let get = async || self.sides[1].queues().get(&dead, GetMessages::new(32, LOCK)).await;
            let messages = again(get).await.unwrap().messages;
            if messages.is_empty() {
                break;
            }
            found.extend(messages.into_iter().map(|message| message.text.unwrap()));
        }
        assert_eq!(found.len(), self.dead.len());
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), self.dead);
    }
}

/// Asks again when a link has ended under the request. What was sent on it was not received, since strikes
/// come between requests.
async fn again<T>(ask: impl AsyncFn() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let mut answer = ask().await;
    for _ in 0..5 {
        match &answer {
            Err(error) if error.is_retryable() => answer = ask().await,
            _ => break,
        }
    }
    answer
}

/// Either both storages did it, or both refused it because the lease is lost.
fn agreed<T: std::fmt::Debug>(answers: Vec<Result<T, StoreError>>) -> Option<Vec<T>> {
    let lost: Vec<_> = answers.iter().map(|a| a.as_ref().is_err_and(StoreError::is_lease_lost)).collect();
    assert_eq!(lost[1], lost[0], "{answers:?}");
    assert_eq!(answers[1].is_ok(), answers[0].is_ok(), "{answers:?}");
    answers.into_iter().map(|answer| answer.ok()).collect()
}
