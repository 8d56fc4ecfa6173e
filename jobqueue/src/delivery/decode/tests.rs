use super::*;
use crate::envelope::{Checkpoint, DeadLetterNote, Deferral};

/// Returns an event with every attribute that earlier deliveries write; `delivery` is the number of the last
/// one.
fn event(delivery: u32) -> Envelope {
    let mut envelope = Envelope::new("1", "s", "t", Payload::None);
    envelope.history = History {
        attempts: 2,
        uncounted: 4_000_000_000,
        delivery,
        finished: Some("{}".into()),
        deferral: Some(Deferral { cause: "unknown".into(), since: "2026-01-01T00:00:00Z".into(), count: 1 }),
        last_error: Some("no".into()),
        checkpoint: Some(Checkpoint::Inline("{}".into())),
        past: None,
    };
    envelope.dead_letter = Some(DeadLetterNote {
        reason: "rejected".into(),
        queue: "q".into(),
        message: None,
        time: String::new(),
        deliveries: 1,
        worker: None,
    });
    envelope
}

fn without_forged_history(delivery: u32, dequeue_count: u32) -> (Envelope, u32) {
    let mut envelope = event(delivery);
    let number = discard_forged_history(&mut envelope, dequeue_count);
    (envelope, number)
}

#[test]
fn history_of_impossible_delivery_is_discarded() {
    for (delivery, dequeue_count) in [(0, 1), (1, 1), (7, 1), (0, 5), (5, 5), (6, 5), (u32::MAX, 5), (0, 0)] {
        let (envelope, number) = without_forged_history(delivery, dequeue_count);
        assert_eq!(envelope.history, History::default(), "{delivery} at {dequeue_count}");
        assert!(envelope.dead_letter.is_none());
        assert_eq!(number, dequeue_count.max(1));
    }
}

#[test]
fn uncounted_deliveries_never_exceed_real_deliveries() {
    let (envelope, number) = without_forged_history(3, 5);
    assert_eq!(number, 5);
    assert_eq!(envelope.history.uncounted, 3);
    assert_eq!(envelope.history.attempts, 2);
    assert!(envelope.history.checkpoint.is_some());
    assert!(envelope.dead_letter.is_some());
}

#[test]
fn missing_dequeue_count_is_taken_from_history() {
    let (envelope, number) = without_forged_history(3, 0);
    assert_eq!(number, 4);
    assert_eq!(envelope.history.attempts, 2);
}

#[test]
fn redriven_job_keeps_checkpoint_and_past() {
    let mut envelope = event(0);
    envelope.history.past = Some("[]".into());
    discard_forged_history(&mut envelope, 1);
    assert!(envelope.history.checkpoint.is_some());
    assert!(envelope.history.past.is_some());
    assert_eq!(envelope.history.attempts, 0);
    assert_eq!(envelope.history.last_error, None);
}
