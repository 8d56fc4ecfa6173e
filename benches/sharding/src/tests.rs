use std::collections::BTreeMap;

use crate::simulation::{Outcome, Setting};

fn run(shards: u32, accounts: u32, load: f64, slow: Option<f64>) -> Outcome {
    Setting { shards, accounts, load, slow, seconds: 2, seed: 7 }.run().expect("a simulation")
}

#[test]
fn twice_the_shards_carry_twice_the_load() {
    let rates: Vec<f64> = [1, 2, 4].iter().map(|shards| run(*shards, 1, 0.8, None).throughput).collect();
    for pair in rates.windows(2) {
        assert!((1.8..2.2).contains(&(pair[1] / pair[0])), "{rates:?}");
    }
}

#[test]
fn an_account_has_a_limit_that_more_accounts_lift() {
    let (one, two) = (run(16, 1, 1.0, None), run(16, 2, 0.8, None));
    assert!(one.requests * one.throughput < 21_000.0, "more than an account serves: {one:?}");
    assert!(two.throughput > one.throughput, "{one:?} {two:?}");
}

/// The throttled shard gets what it can serve; the others lose nothing.
#[test]
fn throttled_shard_does_not_slow_others_under_load() {
    let (well, slow) = (run(4, 1, 0.6, None), run(4, 1, 0.6, Some(100.0)));
    let of = |outcome: &Outcome| -> BTreeMap<String, f64> { outcome.by_queue.clone() };
    let (well, slow) = (of(&well), of(&slow));
    for (queue, rate) in &well {
        let now = slow.get(queue).copied().unwrap_or_default();
        if queue == "work-s0v1" {
            assert!(now < rate / 4.0, "{queue}: {now} of {rate}: not throttled at all");
        } else {
            assert!(now > 0.9 * rate, "{queue}: {now} of {rate}");
        }
    }
}
