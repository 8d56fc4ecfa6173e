use super::*;

const FAILED: Outcome = Outcome::Retried(Duration::ZERO);

fn fail(circuit: &Circuit, job: &str) -> Option<CircuitChange> {
    circuit.record(Some(&CircuitJob::new(&job.into(), None)), &FAILED, None)
}

fn fail_with_key(circuit: &Circuit, job: &str, key: &str, probe: Option<&Probe>) -> Option<CircuitChange> {
    circuit.record(Some(&CircuitJob::new(&job.into(), Some(&key.into()))), &FAILED, probe)
}

fn probe_fails(circuit: &Arc<Circuit>) -> Option<CircuitChange> {
    let probe = circuit.probe();
    assert!(is_probing(circuit));
    circuit.record(Some(&CircuitJob::new(&"a".into(), None)), &FAILED, Some(&probe))
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
    for outcome in [FAILED, Outcome::Released(Duration::ZERO)] {
        assert_eq!(circuit.record(Some(&CircuitJob::new(&"b".into(), None)), &outcome, None), None);
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
    let mut fail_a_probe = || circuit.record(None, &FAILED, probes.pop().as_ref());
    assert_eq!(fail_a_probe(), Some(CircuitChange::Opened(Duration::from_secs(2))));
    assert_eq!(fail_a_probe(), None, "the other probes are no new evidence");
    tokio::time::advance(Duration::from_secs(2)).await;
    let probe = circuit.probe();
    assert!(is_probing(&circuit), "one probe again");
    assert_eq!(circuit.record(None, &Outcome::Completed, Some(&probe)), Some(CircuitChange::Closed));
}

#[tokio::test(start_paused = true)]
async fn failures_of_one_key_hold_that_key_alone() {
    let circuit = circuit();
    for job in ["1", "2", "3"] {
        assert_eq!(fail_with_key(&circuit, job, "sick", None), None);
    }
    let held = |seconds| Some(CircuitChange::KeysHeld(Duration::from_secs(seconds)));
    assert_eq!(fail_with_key(&circuit, "4", "sick", None), held(1));
    assert_eq!(circuit.permit(), Permit::Closed);
    assert!(matches!(circuit.admit(Some("well")), Ok(None)));
    assert!(matches!(circuit.admit(None), Ok(None)));
    assert!(circuit.admit(Some("sick")).is_err());
    tokio::time::advance(Duration::from_secs(1)).await;
    let probe = circuit.admit(Some("sick")).unwrap();
    assert!(probe.is_some());
    assert!(circuit.admit(Some("sick")).is_err(), "one probe at a time");
    assert_eq!(fail_with_key(&circuit, "5", "sick", probe.as_ref()), held(2));
    assert_eq!(circuit.record(None, &Outcome::Completed, None), None, "the circuit was not open");
    assert!(matches!(circuit.admit(Some("sick")), Ok(None)));
}

#[tokio::test(start_paused = true)]
async fn circuit_that_holds_a_key_opens_when_other_keys_fail() {
    let circuit = circuit();
    for job in ["1", "2", "3", "4"] {
        let _ = fail_with_key(&circuit, job, "sick", None);
    }
    let opened = fail_with_key(&circuit, "5", "other", None);
    assert_eq!(opened, Some(CircuitChange::Opened(Duration::from_secs(1))));
    assert!(matches!(circuit.permit(), Permit::OpenUntil(_)));
    assert!(matches!(circuit.admit(Some("sick")), Ok(None)), "the poller holds all");
}
