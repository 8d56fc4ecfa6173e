use super::*;

fn queue(weight: u32) -> Share<&'static str> {
    Share::new(weight, usize::MAX, vec![None])
}

fn take_all(shares: &mut Shares<&'static str>, queue: usize) -> usize {
    std::iter::from_fn(|| shares.grant(queue)).count()
}

#[test]
fn no_queue_takes_slots_reserved_for_another() {
    let mut shares = Shares::new(64, vec![queue(1), queue(3)], vec![]);
    assert_eq!(shares.max_slots(0), 52);
    assert_eq!(shares.free_slots(0), 52);
    assert_eq!(take_all(&mut shares, 0), 52);
    assert_eq!(shares.free_slots(0), 0);
    assert_eq!(take_all(&mut shares, 1), 12);
    let mut alone = Shares::new(64, vec![queue(1)], vec![]);
    assert_eq!(take_all(&mut alone, 0), 64);
}

#[test]
fn nothing_is_reserved_with_more_queues_than_slots() {
    let mut shares = Shares::new(1, vec![queue(1), queue(1)], vec![]);
    let grant = shares.grant(0).unwrap();
    assert!(shares.grant(0).is_none());
    assert!(shares.grant(1).is_none());
    shares.wait(0, false, "had a slot");
    shares.wait(1, false, "had none");
    shares.release(grant);
    assert_eq!(shares.grant_next().unwrap().1, "had none");
}

#[test]
fn no_more_slots_are_reserved_than_exist() {
    for weight in [1, 2, 1_000, u32::MAX] {
        let mut shares = Shares::new(3, vec![queue(weight), queue(1), queue(1)], vec![]);
        let taken: usize = (0..3).map(|queue| take_all(&mut shares, queue)).sum();
        assert_eq!(taken, 3);
    }
}

#[test]
fn freed_slots_go_by_weight() {
    let mut shares = Shares::new(64, vec![queue(3), queue(1)], vec![]);
    for _ in 0..100 {
        shares.wait(0, false, "heavy");
        shares.wait(1, false, "light");
    }
    let granted: Vec<_> = std::iter::from_fn(|| shares.grant_next()).collect();
    assert_eq!(granted.iter().filter(|(_, who)| *who == "heavy").count(), 48);
    assert_eq!(granted.len(), 64);
}

#[test]
fn greedy_queue_leaves_queues_with_a_backlog_their_share() {
    let mut shares = Shares::new(64, vec![queue(3), queue(1)], vec![]);
    shares.note_backlog(0, true);
    assert_eq!(std::iter::from_fn(|| shares.grant_further(1)).count(), 16);
    assert_eq!(std::iter::from_fn(|| shares.grant_further(0)).count(), 48);
    let mut limited = Shares::new(64, vec![Share::new(3, 2, vec![None]), queue(1)], vec![]);
    limited.note_backlog(0, true);
    assert_eq!(take_all(&mut limited, 0), 2);
    assert_eq!(std::iter::from_fn(|| limited.grant_further(1)).count(), 62);
}

#[test]
fn handlers_share_their_count_over_queues() {
    let limited = || Share::new(1, usize::MAX, vec![Some(0)]);
    let mut shares = Shares::<&str>::new(64, vec![limited(), limited()], vec![2]);
    let grant = shares.grant(0).unwrap();
    assert!(shares.grant(1).is_some());
    assert!(shares.grant(1).is_none());
    shares.release(grant);
    assert!(shares.grant(1).is_some());
}

#[test]
fn delivery_with_a_message_gets_a_slot_before_a_fetch() {
    let mut shares = Shares::new(2, vec![queue(1)], vec![]);
    shares.wait(0, false, "fetches");
    shares.wait(0, true, "has waited in order");
    shares.wait(0, true, "has waited less");
    assert_eq!(shares.grant_next().unwrap().1, "has waited in order");
    assert_eq!(shares.grant_next().unwrap().1, "has waited less");
    shares.forget(|who| *who == "fetches");
    assert!(shares.grant_next().is_none());
}

/// The cost of a slot was once quadratic in the number of queues: this test took minutes.
#[test]
fn slots_are_granted_among_thousands_of_queues() {
    let mut shares = Shares::new(1_024, (0..10_000).map(|_| queue(1)).collect(), vec![]);
    for queue in 0..10_000 {
        shares.note_backlog(queue, true);
        shares.wait(queue, false, "waits");
    }
    assert_eq!(std::iter::from_fn(|| shares.grant_next()).count(), 1_024);
}

#[test]
fn places_of_a_shared_handler_go_by_weight() {
    let limited = |weight| Share::new(weight, usize::MAX, vec![Some(0)]);
    let mut shares = Shares::new(64, vec![limited(4), limited(1), queue(1)], vec![10]);
    for queue in [0, 1] {
        shares.note_backlog(queue, true);
    }
    assert_eq!(std::iter::from_fn(|| shares.grant_further(1)).count(), 2);
    shares.wait(0, false, "heavy");
    shares.wait(1, false, "light");
    let heavy = std::iter::from_fn(|| shares.grant_next()).collect::<Vec<_>>();
    assert_eq!(heavy.iter().map(|(_, who)| *who).collect::<Vec<_>>(), ["heavy"], "the other has its share");
    assert_eq!(std::iter::from_fn(|| shares.grant_further(0)).count(), 7);
    assert!(shares.grant(2).is_some(), "a queue of another kind has slots of its own");
}
