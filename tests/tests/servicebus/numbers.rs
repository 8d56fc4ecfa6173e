//! The numbers that the service gives to messages: what changes them is documented in part only.

use jobqueue::maintenance::{SweepOptions, sweep};
use jobqueue::storage::{
    DeadLetterCause, DeadLetterMessage, GetMessages, LeasedMessage, PutMessage, UpdateMessage,
};
use serde_json::json;

use super::{Bench, MINUTE};

/// A dead letter keeps the number of its message, and is not the last one by it.
const KEPT: [&str; 2] = ["--keeps-numbers", "true"];

impl Bench {
    async fn reject(&self, job: &LeasedMessage) {
        let letter = DeadLetterMessage::new("dead", DeadLetterCause::new("rejected"));
        self.store().dead_letter(&self.queue, &job.message, letter).await.unwrap();
    }

    /// Returns the texts of the dead letters, as a look shows them.
    async fn letters_shown(&self) -> Vec<String> {
        let letters = self.store().peek(&self.queue.dead_letter().unwrap(), 32).await.unwrap();
        letters.into_iter().map(|letter| letter.text.unwrap()).collect()
    }
}

// Looks began at the first letter that was ever seen, and an older job that died later lay before it.
#[tokio::test]
async fn a_dead_letter_of_an_older_job_is_shown() {
    for arguments in [&KEPT[..], &[]] {
        let bench = Bench::with(json!({}), arguments);
        for number in 0..9 {
            bench.put(PutMessage::new(number.to_string())).await.unwrap();
        }
        let mut jobs = Vec::new();
        while jobs.len() < 9 {
            jobs.extend(bench.store().get(&bench.queue, GetMessages::new(9, MINUTE)).await.unwrap().messages);
        }
        bench.reject(&jobs[5]).await;
        assert_eq!(bench.letters_shown().await.len(), 1, "{arguments:?}");
        bench.reject(&jobs[2]).await;
        assert_eq!(bench.letters_shown().await.len(), 2, "{arguments:?}");
    }
}

// Its text was looked for under the number that the message had while it was delayed, and swept.
#[tokio::test]
async fn a_job_that_the_service_dead_letters_after_a_delay_keeps_its_checkpoint() {
    for arguments in [&KEPT[..], &[]] {
        let bench = Bench::with(json!({ "MaxDeliveryCount": 2 }), arguments);
        bench.put(PutMessage::new("job").with_visibility_delay(MINUTE)).await.unwrap();
        for _ in 0..2 {
            bench.emulator.advance(2 * MINUTE);
            let leased = bench.get().await.unwrap();
            let save = UpdateMessage::new(MINUTE).with_text("step 1".to_owned());
            bench.update(&leased.message, save).await.unwrap();
        }
        bench.emulator.advance(2 * MINUTE);
        assert_eq!(bench.count("deadLetters"), 1, "{arguments:?}");
        assert_eq!(bench.letters_shown().await, ["step 1"], "{arguments:?}");
        assert_eq!(sweep(&bench.storage_later(), SweepOptions::new()).await.unwrap().removed, 0);
        let dead = bench.queue.dead_letter().unwrap();
        let letters = bench.store().get(&dead, GetMessages::new(1, MINUTE)).await.unwrap().messages;
        assert_eq!(letters[0].text.as_deref(), Ok("step 1"), "{arguments:?}");
        bench.store().delete(&dead, &letters[0].message, Default::default()).await.unwrap();
        assert_eq!(bench.texts().await.len(), 0, "{arguments:?}");
    }
}
