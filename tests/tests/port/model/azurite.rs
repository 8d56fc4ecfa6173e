//! The same comparison with Azurite, in real time: fewer operations, and answers without times and order.
//!
//! It leaves out the known differences of Azurite: receipts of other messages of one batch, texts and
//! metadata that Azure refuses, expired messages in the count. Leases end only where the test waits for both
//! storages.

use std::collections::BTreeSet;
use std::time::Duration;

use jobqueue::azure::Options;
use jobqueue::settings::Metadata;
use jobqueue::storage::*;
use jobqueue::{QueueName, Storage, memory};
use jobqueue_tests::azurite::Azurite;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const STEPS: usize = 150;
/// The seconds of a lease that outlives the test, also on a machine with much to do.
const LONG: u64 = 3_600;

/// Memory, and Azurite.
struct Two {
    sides: [Storage; 2],
    queue: QueueName,
    /// The text of each message when it was put, and all its receipts on each side, in the same order.
    refs: Vec<(String, [MessageRef; 2])>,
}

#[tokio::test]
async fn azurite_answers_as_memory_does() {
    let mut random = StdRng::seed_from_u64(jobqueue_tests::seed());
    let azurite = Azurite::shared();
    let options = Options::from_connection_string(&azurite.connection_string()).unwrap();
    let queue = QueueName::new(format!("model-{}", uuid::Uuid::new_v4().simple())).unwrap();
    let mut two =
        Two { sides: [memory::open(), Storage::open(options).await.unwrap()], queue, refs: Vec::new() };
    for side in &two.sides {
        side.queues().create_queue(&two.queue, &Metadata::new()).await.unwrap();
    }
    for step in 0..STEPS {
        let operation = random.random_range(0..100);
        match operation {
            0..30 if two.count().await < 30 => two.put(format!("{step} ü\r\n<&>")).await,
            0..45 => two.get(LONG).await,
            45..48 => two.get_until_expired().await,
            48..70 => {
                let text = random.random_bool(0.5).then(|| format!("{step} changed"));
                let visibility = if random.random_bool(0.5) { 0 } else { LONG };
                two.update(&mut random, visibility, text).await;
            }
            70..90 => two.delete(&mut random).await,
            90..98 => two.peek().await,
            _ => two.clear().await,
        }
        two.count().await;
    }
}

impl Two {
    async fn put(&mut self, text: String) {
        let mut refs = Vec::new();
        for side in &self.sides {
            let put = side.queues().put(&self.queue, PutMessage::new(text.clone())).await;
            refs.push(put.unwrap().message);
        }
        self.refs.push((text, refs.try_into().unwrap()));
    }

    async fn get(&mut self, seconds: u64) {
        let mut got = Vec::new();
        for side in &self.sides {
            let options = GetMessages::new(32, Duration::from_secs(seconds));
            let mut messages = side.queues().get(&self.queue, options).await.unwrap().messages;
            messages.sort_by_key(|message| message.text.clone());
            got.push(messages);
        }
        let seen = |messages: &[LeasedMessage]| -> Vec<_> {
            messages.iter().map(|message| (message.text.clone().unwrap(), message.dequeue_count)).collect()
        };
        assert_eq!(seen(&got[1]), seen(&got[0]));
        for (memory, azurite) in got[0].iter().zip(&got[1]) {
            let refs = [memory.message.clone(), azurite.message.clone()];
            self.refs.push((memory.text.clone().unwrap(), refs));
        }
    }

    async fn get_until_expired(&mut self) {
        self.get(1).await;
        tokio::time::sleep(Duration::from_millis(2_100)).await;
    }

    /// A receipt of any age.
    fn pick(&self, random: &mut StdRng) -> Option<[MessageRef; 2]> {
        let newest = self.refs.len().checked_sub(1)?;
        let oldest = if random.random_bool(0.8) { 5 } else { 100 };
        let back = random.random_range(0..=newest.min(oldest));
        Some(self.refs[newest - back].1.clone())
    }

    async fn update(&mut self, random: &mut StdRng, seconds: u64, text: Option<String>) {
        let Some(refs) = self.pick(random) else { return };
        let mut answers = Vec::new();
        for (side, message) in self.sides.iter().zip(&refs) {
            let visibility = Duration::from_secs(seconds);
            let change =
                UpdateMessage::new(visibility).with_text(text.clone()).with_expired(ExpiredReceipt::Allow);
            let updated = side.queues().update(&self.queue, message, change).await;
            let receipt = updated.map(|updated| updated.receipt);
            answers.push(receipt.map(|receipt| MessageRef { id: message.id.clone(), receipt }));
        }
        if let Some(refs) = agreed(answers) {
            self.refs.push((text.unwrap_or_default(), refs.try_into().unwrap()));
        }
    }

    async fn delete(&mut self, random: &mut StdRng) {
        let Some(refs) = self.pick(random) else { return };
        let mut answers = Vec::new();
        for (side, message) in self.sides.iter().zip(&refs) {
            answers.push(side.queues().delete(&self.queue, message, ExpiredReceipt::Allow).await);
        }
        agreed(answers);
    }

    async fn peek(&self) {
        let mut seen = Vec::new();
        for side in &self.sides {
            let peeked = side.queues().peek(&self.queue, 32).await.unwrap();
            let texts = peeked.into_iter().map(|message| (message.text.unwrap(), message.dequeue_count));
            seen.push(texts.collect::<BTreeSet<_>>());
        }
        assert_eq!(seen[1], seen[0]);
    }

    async fn clear(&self) {
        for side in &self.sides {
            side.queues().clear(&self.queue).await.unwrap();
        }
    }

    async fn count(&self) -> u64 {
        let mut counts = Vec::new();
        for side in &self.sides {
            counts.push(side.queues().queue_properties(&self.queue).await.unwrap().approximate_count);
        }
        assert_eq!(counts[1], counts[0]);
        counts[0]
    }
}

/// Either both storages did it, or both refused it because the lease is lost.
fn agreed<T: std::fmt::Debug>(answers: Vec<Result<T, StoreError>>) -> Option<Vec<T>> {
    let lost: Vec<_> = answers.iter().map(|a| a.as_ref().is_err_and(StoreError::is_lease_lost)).collect();
    assert_eq!(lost[1], lost[0], "{answers:?}");
    answers.into_iter().map(|answer| answer.ok()).collect()
}
