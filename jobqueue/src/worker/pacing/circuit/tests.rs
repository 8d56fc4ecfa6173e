use super::*;

fn fail(circuit: &Circuit, job: &str) -> Option<CircuitChange> {
    circuit.record(Some(&job.into()), &Outcome::Retried(Duration::ZERO), None)
}

fn probe_fails(circuit: &Arc<Circuit>) -> Option<CircuitChange> {
    let probe = circuit.probe();
    assert!(is_probing(circuit));
    circuit.record(Some(&"a".into()), &Outcome::Retried(Duration::ZERO), Some(&probe))
}

fn is_probing(circuit: &Circuit) -> bool {
    matches!(circuit.permit(), Permit::Probing(_))
}

fn circuit() -> Arc<Circuit> {
    let rules = CircuitBreaker::new().failures(4).jobs(2);
    Arc::new(Circuit::new(Some(rules.pause(Duration::from_secs(1), Duration::from_secs(3)))))
}

#[tokio::test(start_paused = true)]
async fn jobs_that_fail_in_one_call_do_not_open_the_circuit() {
    let circuit = Circuit::new(Some(CircuitBreaker::new().beyond_chunks_of(50)));
    opens_with_the_51st(&circuit);
}

fn opens_with_the_51st(circuit: &Circuit) {
    for job in 0..50 {
        assert_eq!(fail(circuit, &format!("{job}")), None);
    }
    assert!(matches!(fail(circuit, "another"), Some(CircuitChange::Opened(_))));
}

#[tokio::test(start_paused = true)]
async fn numbers_of_jobs_and_failures_are_set_in_any_order() {
    opens_with_the_51st(&Circuit::new(Some(CircuitBreaker::new().jobs(51).failures(51))));
    let circuit = Circuit::new(Some(CircuitBreaker::new().jobs(51).failures(51)));
    for failure in 0..60 {
        assert_eq!(fail(&circuit, &(failure % 10).to_string()), None, "ten jobs are too few");
    }
    let circuit = Circuit::new(Some(CircuitBreaker::new().jobs(5).failures(2)));
    assert_eq!(fail(&circuit, "a"), None);
    let opened = fail(&circuit, "b");
    assert!(matches!(opened, Some(CircuitChange::Opened(_))), "more jobs than failures are not required");
}

fn opened() -> Arc<Circuit> {
    let circuit = circuit();
    for job in ["a", "b", "c", "a"] {
        let _ = fail(&circuit, job);
    }
    circuit
}

#[tokio::test(start_paused = true)]
async fn circuit_opens_when_all_jobs_fail_and_tries_one_at_a_time() {
    let circuit = circuit();
    for job in ["a", "b", "c"] {
        assert_eq!(fail(&circuit, job), None);
    }
    assert_eq!(circuit.permit(), Permit::Closed);
    assert_eq!(fail(&circuit, "a"), Some(CircuitChange::Opened(Duration::from_secs(1))));
    assert!(matches!(circuit.permit(), Permit::OpenUntil(_)));
    assert_eq!(fail(&circuit, "b"), None, "a straggler does not make the pause longer");
    for pause in [2, 3, 3] {
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(circuit.permit(), Permit::Probe);
        assert_eq!(probe_fails(&circuit), Some(CircuitChange::Opened(Duration::from_secs(pause))));
    }
    tokio::time::advance(Duration::from_secs(3)).await;
    let probe = circuit.probe();
    assert_eq!(circuit.record(None, &Outcome::Released(Duration::ZERO), Some(&probe)), None);
    assert_eq!(circuit.permit(), Permit::Probe, "a snooze proves nothing; another probe follows");
    assert_eq!(circuit.record(None, &Outcome::Completed, None), Some(CircuitChange::Closed));
    assert_eq!(circuit.permit(), Permit::Closed);
}

#[tokio::test(start_paused = true)]
async fn end_of_another_delivery_does_not_end_the_probe() {
    let circuit = opened();
    tokio::time::advance(Duration::from_secs(3)).await;
    let probe = circuit.probe();
    for outcome in [Outcome::Retried(Duration::ZERO), Outcome::Released(Duration::ZERO)] {
        assert_eq!(circuit.record(Some(&"b".into()), &outcome, None), None);
        assert!(is_probing(&circuit));
    }
    drop(probe);
    assert_eq!(circuit.permit(), Permit::Probe, "a dropped probe makes room for another");
    let (late, next) = (circuit.probe(), circuit.probe());
    drop(late);
    assert!(is_probing(&circuit));
    drop(next);
}

#[tokio::test(start_paused = true)]
async fn circuit_stays_closed_for_one_bad_job_and_after_a_success() {
    let circuit = circuit();
    for _ in 0..20 {
        assert_eq!(fail(&circuit, "bad"), None);
    }
    for job in ["a", "b", "c"] {
        let _ = circuit.record(None, &Outcome::Completed, None);
        assert_eq!(fail(&circuit, job), None);
    }
}

#[tokio::test(start_paused = true)]
async fn long_probes_permit_more_probes() {
    let circuit = opened();
    tokio::time::advance(Duration::from_secs(3)).await;
    let mut probes = Vec::new();
    for max in [1, 2, 4, 8] {
        while circuit.permit() == Permit::Probe {
            probes.push(circuit.probe());
        }
        assert_eq!(probes.len(), max);
        assert_eq!(circuit.permit(), Permit::Probing(Instant::now() + MIN_PROBE_PERIOD));
        tokio::time::advance(MIN_PROBE_PERIOD).await;
    }
    let failed = Outcome::Retried(Duration::ZERO);
    let mut fail_a_probe = || circuit.record(None, &failed, probes.pop().as_ref());
    assert_eq!(fail_a_probe(), Some(CircuitChange::Opened(Duration::from_secs(2))));
    assert_eq!(fail_a_probe(), None, "the other probes are no new evidence");
    tokio::time::advance(Duration::from_secs(2)).await;
    let probe = circuit.probe();
    assert!(is_probing(&circuit), "one probe again");
    assert_eq!(circuit.record(None, &Outcome::Completed, Some(&probe)), Some(CircuitChange::Closed));
}

// The periods of the earlier probe counted, so that the second opening tried a message for each free slot.
#[tokio::test(start_paused = true)]
async fn second_opening_tries_one_message_while_a_probe_of_the_first_runs() {
    let circuit = opened();
    tokio::time::advance(Duration::from_secs(3)).await;
    let long = circuit.probe();
    tokio::time::advance(MIN_PROBE_PERIOD).await;
    let short = circuit.probe();
    assert_eq!(circuit.record(None, &Outcome::Completed, Some(&short)), Some(CircuitChange::Closed));
    tokio::time::advance(20 * MIN_PROBE_PERIOD).await;
    for job in ["a", "b", "c", "a"] {
        let _ = fail(&circuit, job);
    }
    tokio::time::advance(Duration::from_secs(3)).await;
    assert_eq!(circuit.permit(), Permit::Probe);
    let probe = circuit.probe();
    assert!(is_probing(&circuit), "one message at first");
    let failed = Outcome::Retried(Duration::ZERO);
    assert_eq!(circuit.record(Some(&"a".into()), &failed, Some(&long)), None, "it tests the first opening");
    assert!(is_probing(&circuit));
    drop(probe);
}
