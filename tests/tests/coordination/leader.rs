//! Leadership under faults: lost answers, deleted blobs, invalid leases, and random combinations. In paused
//! time on memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::leader::Leader;
use jobqueue::storage::{BlobName, ContainerName};
use jobqueue::storage::{Operation, PutBlob, StoreErrorKind};
use jobqueue::{Runtime, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::death;
use jobqueue_tests::patched::Patched;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep, timeout};

const LEASE: Duration = Duration::from_secs(15);
const LOST: Fault = Fault::DropAnswer(StoreErrorKind::Timeout);

fn candidate(storage: &Storage) -> Leader {
    let storage = storage.clone().with_runtime(Runtime::paused());
    Leader::new(&storage, "cop").unwrap().lease(LEASE).poll_interval(Duration::from_secs(1))
}

fn pair() -> (Storage, Faulty, Leader, Leader) {
    let storage = Storage::memory();
    let faulty = Faulty::new(&storage);
    let (a, b) = (candidate(&faulty.storage()), candidate(&storage));
    (storage, faulty, a, b)
}

fn lease_blob() -> BlobName {
    BlobName::new(ContainerName::new("jobqueue-leaders").unwrap(), "cop").unwrap()
}

// F77
#[tokio::test(start_paused = true)]
async fn one_lost_renew_answer_costs_nothing() {
    let (_, faulty, a, b) = pair();
    let held = a.lead().await.unwrap();
    faulty.plan(Operation::RenewLease, 1, LOST);
    sleep(LEASE * 4).await;
    assert!(a.has_control() && !held.token().is_cancelled() && b.try_lead().await.unwrap().is_none());
}

// audit 13, C13-5
#[tokio::test(start_paused = true)]
async fn storage_that_panics_in_a_renewal_costs_nothing() {
    let (_, faulty, a, b) = pair();
    let held = a.lead().await.unwrap();
    faulty.on(Operation::RenewLease, |call| {
        assert_ne!(call.nth, 1, "boom");
        None
    });
    sleep(LEASE * 4).await;
    assert!(a.has_control() && !held.token().is_cancelled() && b.try_lead().await.unwrap().is_none());
}

// F77
#[tokio::test(start_paused = true)]
async fn leader_without_renew_answers_stops_at_its_deadline() {
    let (_, faulty, a, b) = pair();
    let begun = Instant::now();
    let held = a.lead().await.unwrap();
    // The storage renews each time; the leader cannot know.
    faulty.plan_always(Operation::RenewLease, LOST);
    held.token().cancelled().await;
    assert!(a.has_control() && begun.elapsed() < LEASE);
    while a.has_control() {
        assert!(begun.elapsed() < LEASE, "it acts after its deadline");
        sleep(Duration::from_millis(10)).await;
    }
    let next = b.lead().await.unwrap();
    assert!(next.term() > held.term());
}

/// On Azure a read costs a twelfth of an attempt.
#[tokio::test(start_paused = true)]
async fn candidate_only_reads_while_another_leads_and_takes_over_in_time() {
    let storage = Storage::memory();
    let [first, second] = [0, 1].map(|_| Faulty::new(&storage));
    let [a, b] = [&first, &second].map(|faulty| candidate(&faulty.storage()));
    let _held = a.lead().await.unwrap();
    let next = tokio::spawn(async move { b.lead().await.unwrap() });
    sleep(LEASE * 40).await;
    assert_eq!(second.calls_of(Operation::AcquireLease), 1);
    assert!(second.calls_of(Operation::BlobProperties) > 300, "it does not look");
    let died = Instant::now();
    death::now(&first);
    let _held = next.await.unwrap();
    assert!(died.elapsed() <= LEASE + Duration::from_millis(1_500), "{:?}", died.elapsed());
}

// F78
#[tokio::test(start_paused = true)]
async fn lost_acquire_answer_is_retried_under_the_same_id() {
    let (_, faulty, a, b) = pair();
    b.lead().await.unwrap().release().await;
    faulty.plan(Operation::AcquireLease, 1, LOST);
    let held = a.try_lead().await.unwrap().expect("the lease is its own");
    assert!(a.has_control() && b.try_lead().await.unwrap().is_none());
    held.release().await;
    // However often it is lost, the next try takes up what was acquired.
    faulty.plan_always(Operation::AcquireLease, LOST);
    a.try_lead().await.unwrap_err();
    faulty.heal();
    assert!(a.try_lead().await.unwrap().is_some());
}

// F82
#[tokio::test(start_paused = true)]
async fn renewal_of_another_lease_ends_the_term() {
    let storage = Storage::memory();
    let a = candidate(&Patched::new().renewing_anything().storage(&storage, &storage));
    let begun = Instant::now();
    let held = a.lead().await.unwrap();
    held.token().cancelled().await;
    assert!(!a.has_control());
    // At the first renewal, not at the deadline.
    assert!(begun.elapsed() <= LEASE / 2, "after {:?}", begun.elapsed());
}

/// A storage that renews a lease that has expired long ago, as Azurite does.
// F82
#[tokio::test(start_paused = true)]
async fn late_renew_answer_does_not_restore_leadership() {
    let (_, faulty, a, b) = pair();
    let held = a.lead().await.unwrap();
    faulty.plan_always(Operation::RenewLease, Fault::DelayAfter(LEASE * 2));
    let next = timeout(LEASE * 3, b.lead()).await.expect("b leads").unwrap();
    assert!(!a.has_control() && held.token().is_cancelled());
    sleep(LEASE * 3).await;
    assert!(!a.has_control() && b.has_control() && next.term() > held.term());
}

/// An operator breaks the lease.
// F80
#[tokio::test(start_paused = true)]
async fn broken_lease_ends_the_work_and_backs_off() {
    let (_, faulty, leader, _) = pair();
    let began = Instant::now();
    let mut runs = 0;
    let again = leader
        .run_while_leader(|_| {
            runs += 1;
            let (faulty, run) = (faulty.clone(), runs);
            async move {
                if run == 1 {
                    faulty.plan(Operation::RenewLease, 1, Fault::Refuse(StoreErrorKind::LeaseBroken));
                    std::future::pending::<()>().await;
                }
                Instant::now()
            }
        })
        .await
        .unwrap();
    assert_eq!(runs, 2);
    assert!(again - began >= LEASE * 2, "led again after {:?}", again - began);
}

// round 39, b B3
#[tokio::test(start_paused = true)]
async fn work_that_returns_when_its_token_fires_is_called_again_in_the_next_term() {
    let (_, faulty, leader, _) = pair();
    faulty.plan_always(Operation::RenewLease, LOST);
    let mut runs = 0;
    let led = leader.run_while_leader(|leadership| {
        runs += 1;
        let (faulty, run) = (faulty.clone(), runs);
        async move {
            if run == 1 {
                leadership.token().cancelled().await;
            } else {
                faulty.heal();
            }
            run
        }
    });
    let run = timeout(LEASE * 4, led).await.expect("it does not lead again").unwrap();
    assert_eq!(run, 2, "the loss of a leadership ended the candidacy");
}

#[tokio::test(start_paused = true)]
async fn deleting_the_leader_blob_ends_the_term() {
    let storage = Storage::memory();
    let taken = Arc::new(Mutex::new(None));
    let newest = Arc::clone(&taken);
    let patched = Patched::new().on_taken(move |lease| *newest.lock().unwrap() = Some(lease));
    let (a, b) = (candidate(&patched.storage(&storage, &storage)), candidate(&storage));
    let first = a.lead().await.unwrap();
    let lease = *taken.lock().unwrap();
    storage.blobs().delete_blob(&lease_blob(), lease.as_ref()).await.unwrap();
    first.token().cancelled().await;
    assert!(!a.has_control());
    let second = b.lead().await.unwrap();
    assert!(b.has_control() && second.term() > first.term());
}

#[tokio::test(start_paused = true)]
async fn a_blob_that_is_written_over_does_not_begin_the_terms_anew() {
    let (storage, _, a, b) = pair();
    let first = a.lead().await.unwrap();
    sleep(Duration::from_secs(3)).await;
    first.release().await;
    storage.blobs().put_blob(&lease_blob(), "mine".into(), PutBlob::new()).await.unwrap();
    let second = b.lead().await.unwrap();
    assert!(second.term() > first.term(), "{} after {}", second.term(), first.term());
}

/// Hanging calls of the application do not stop a candidate from acquiring and renewing: those use
/// connections of their own.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_hang_hold_up_no_candidate() {
    let storage = Storage::memory();
    let faulty = Faulty::new(&storage);
    death::now(&faulty);
    let stuck = Patched::new().detached(storage.blobs()).storage(&storage, &faulty.storage());
    let leader = Leader::new(&stuck, "cop").unwrap().lease(LEASE);
    let held = timeout(LEASE, leader.lead()).await.expect("it waits for calls of others").unwrap();
    assert!(leader.has_control());
    held.release().await;
    assert!(candidate(&storage).try_lead().await.unwrap().is_some(), "not released");
}

#[tokio::test(start_paused = true)]
async fn a_storage_that_does_not_answer_holds_no_candidate_for_ever() {
    for operation in [Operation::AcquireLease, Operation::PutBlob, Operation::CreateContainer] {
        let (_, faulty, a, _) = pair();
        faulty.plan(operation, 1, Fault::Hang);
        drop(timeout(LEASE * 4, a.lead()).await.expect("hangs").unwrap());
    }
}

/// Plans a fault for about every fourth call of leadership. Returns the time of the latest request that can
/// have begun the lease.
fn random_faults(faulty: &Faulty, seed: u64) -> Arc<Mutex<Instant>> {
    let newest = Arc::new(Mutex::new(Instant::now()));
    use Operation as O;
    let all =
        [O::AcquireLease, O::RenewLease, O::ReleaseLease, O::PutBlob, O::BlobProperties, O::CreateContainer];
    for (number, operation) in all.into_iter().enumerate() {
        let mut random = StdRng::seed_from_u64(seed ^ ((number as u64) << 32));
        let newest = Arc::clone(&newest);
        faulty.on(operation, move |call| {
            if matches!(operation, O::AcquireLease | O::RenewLease) {
                *newest.lock().unwrap() = call.at;
            }
            let kind = StoreErrorKind::Timeout;
            let wait = Duration::from_millis(random.random_range(0..20_000));
            match random.random_range(0..28) {
                0 => Some(Fault::DropAnswer(kind)),
                1 => Some(Fault::LoseRequest(kind)),
                2 => Some(Fault::Refuse(StoreErrorKind::Unavailable)),
                3 => Some(Fault::DelayBefore(wait)),
                4 => Some(Fault::DelayAfter(wait)),
                5 => Some(Fault::Hang),
                6 => Some(Fault::HangAfter),
                _ => None,
            }
        });
    }
    newest
}

// I16
#[tokio::test(start_paused = true)]
async fn no_two_lead_at_once_and_none_after_its_deadline() {
    for _ in 0..4 {
        let seed = jobqueue_tests::seed();
        let storage = Storage::memory();
        let faulty: Vec<_> = (0..3).map(|_| Faulty::new(&storage)).collect();
        let leaders: Vec<_> = faulty.iter().map(|faulty| Arc::new(candidate(&faulty.storage()))).collect();
        let (mut tasks, mut requests) = (Vec::new(), Vec::new());
        for (number, leader) in leaders.iter().enumerate() {
            requests.push(random_faults(&faulty[number], seed.wrapping_add(number as u64)));
            let (leader, mut random) = (Arc::clone(leader), StdRng::seed_from_u64(!seed ^ number as u64));
            tasks.push(tokio::spawn(async move {
                loop {
                    let held = leader.lead().await.unwrap();
                    let wanted = Duration::from_secs(random.random_range(1..120));
                    let _ = timeout(wanted, held.token().cancelled()).await;
                    // Some give it up, some let it expire.
                    if random.random_bool(0.5) {
                        held.release().await;
                    } else {
                        sleep(LEASE * 2).await;
                    }
                }
            }));
        }
        let (mut owners, mut highest, mut changes) = (HashMap::new(), 0, 0);
        for _ in 0..18_000 {
            sleep(Duration::from_millis(100)).await;
            let leading: Vec<_> = (0..3).filter_map(|n| leaders[n].term().map(|term| (n, term))).collect();
            assert!(leading.len() <= 1, "seed {seed}: {leading:?} lead at once");
            let Some(&(number, term)) = leading.first() else { continue };
            assert_eq!(
                *owners.entry(term).or_insert(number),
                number,
                "seed {seed}: term {term} has two leaders"
            );
            assert!(term >= highest, "seed {seed}: term {term} after {highest}");
            let newest = *requests[number].lock().unwrap();
            assert!(newest.elapsed() < LEASE, "seed {seed}: leads after its deadline");
            changes += u32::from(term > highest);
            highest = term;
        }
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
        assert!(changes >= 10, "seed {seed}: control moved only {changes} times in half an hour");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_cannot_be_had_is_told_and_never_waited_for() {
    for lease in [Duration::from_secs(14), Duration::from_secs(61), Duration::from_millis(15_500)] {
        let leader = Leader::new(&Storage::memory(), "cop").unwrap().lease(lease);
        for error in [leader.try_lead().await.unwrap_err(), leader.lead().await.unwrap_err()] {
            assert!(error.to_string().contains("15 to 60") && !error.is_retryable(), "{error}");
        }
        assert!(!leader.has_control());
    }
}

/// The storage may still apply the release: the lease that it would end must not be taken for a new one.
// audit 23, coordination C5
#[tokio::test(start_paused = true)]
async fn lease_whose_release_is_unanswered_is_left_to_expire() {
    let (_, faulty, a, _) = pair();
    a.lead().await.unwrap().release().await;
    faulty.plan(Operation::BlobProperties, 1, Fault::Refuse(StoreErrorKind::Unauthorized));
    for nth in [1, 2] {
        faulty.plan(Operation::ReleaseLease, nth, Fault::LoseRequest(StoreErrorKind::Timeout));
    }
    a.try_lead().await.unwrap_err();
    assert!(a.try_lead().await.unwrap().is_none(), "leads under the released id");
    sleep(LEASE).await;
    assert!(a.try_lead().await.unwrap().is_some());
}

// audit 23, coordination C5
#[tokio::test(start_paused = true)]
async fn candidate_leads_at_once_by_a_lease_whose_acquisition_was_not_answered() {
    let (_, faulty, a, _) = pair();
    a.lead().await.unwrap().release().await;
    for nth in 1..=5 {
        faulty.plan(Operation::AcquireLease, nth, LOST);
    }
    let began = Instant::now();
    let _leads = a.lead().await.unwrap();
    assert!(began.elapsed() < LEASE / 2, "waited for the expiry of its own lease: {:?}", began.elapsed());
}
