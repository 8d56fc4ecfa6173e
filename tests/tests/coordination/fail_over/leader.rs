//! F76: the process of a leader is stopped for longer than its lease.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jobqueue::Storage;
use jobqueue::leader::{Leader, Leadership};
use jobqueue::storage::{BlobName, ContainerName};
use jobqueue::storage::{LeaseId, PutBlob};
use jobqueue_tests::children::{Part, part};
use jobqueue_tests::patched::Patched;
use jobqueue_tests::say;
use tokio::time::sleep;

use super::fenced::Fenced;
use super::{LEASE, Place, at_once, signal, told, until_input_ends};

const PART: &str = "fail_over::leader::part_of_a_candidate";

/// Acts while it leads. In the role `stops` it stops its own process in its first term; when the process is
/// continued, it first completes its pending action.
#[tokio::test(flavor = "multi_thread")]
async fn part_of_a_candidate() {
    let Some(input) = part(PART) else { return };
    let (role, name, storage) = told(&input).await;
    let taken = Arc::new(Mutex::new(None));
    let newest = Arc::clone(&taken);
    let patched = Patched::new().on_taken(move |lease| *newest.lock().unwrap() = Some(lease));
    let watched = patched.storage(&storage, &storage);
    let leader = Leader::new(&watched, &name).unwrap().lease(LEASE);
    let leader = leader.poll_interval(Duration::from_millis(500));
    let candidate = Candidate { role, name, storage, taken };
    let mut first = true;
    let led = leader.run_while_leader(|leadership| {
        let stops = std::mem::take(&mut first) && candidate.role == "stops";
        candidate.clone().lead(leadership, stops)
    });
    tokio::select! {
        led = led => led.unwrap(),
        () = until_input_ends() => {}
    }
    // The lease is released in the background.
    while leader.has_control() {
        sleep(Duration::from_millis(20)).await;
    }
    sleep(Duration::from_millis(500)).await;
}

#[derive(Clone)]
struct Candidate {
    role: String,
    name: String,
    storage: Storage,
    taken: Arc<Mutex<Option<LeaseId>>>,
}

impl Candidate {
    async fn lead(self, leadership: Leadership, stops: bool) {
        let term = leadership.term();
        say!("leads {term}");
        for act in 0.. {
            let mut pause = Duration::from_millis(100);
            if stops && act == 3 {
                // Out of the reach of the leader, which drops only what it was given.
                tokio::spawn(self.clone().stop_in_the_middle_of_an_act(term, leadership.has_control()));
                // Over while the process is stopped: when it is continued, the work is ready to continue.
                pause = LEASE / 2;
            }
            sleep(pause).await;
            say!("begins {term}");
            if Fenced::open(&self.storage, &self.name).await.act(term, &self.role).await {
                say!("acts {term}");
            }
        }
    }

    async fn stop_in_the_middle_of_an_act(self, term: u64, in_control: bool) {
        let old = self.taken.lock().unwrap().unwrap();
        assert!(in_control);
        // A process that stands still in the middle of a write to a SQLite file holds up all others; that is
        // another story.
        sleep(Duration::from_millis(600)).await;
        say!("stops {term}");
        stand_still();
        // The action that began in good faith continues much later.
        let container = ContainerName::new("jobqueue-leaders").unwrap();
        let blob = BlobName::new(container, &self.name).unwrap();
        let written = loop {
            let expired = PutBlob::new().with_lease(old);
            match self.storage.blobs().put_blob(&blob, "".into(), expired).await {
                // Connections have died meanwhile.
                Err(e) if e.is_retryable() || e.is_ambiguous() => {}
                written => break written,
            }
        };
        say!("old lease: {}", written.map_or_else(|e| format!("{:?}", e.kind()), |_| "taken".to_owned()));
        let acted = Fenced::open(&self.storage, &self.name).await.act(term, &self.role).await;
        say!("old term: {}", if acted { "taken" } else { "refused" });
    }
}

/// Stops this process. Returns the time at which it was continued: the signal takes a moment to reach every
/// thread.
fn stand_still() {
    let before = Instant::now();
    signal("-STOP", std::process::id());
    while before.elapsed() < LEASE / 2 {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the next line of the part that begins so, and the lines before.
fn until(part: &mut Part, beginning: &str) -> (String, Vec<String>) {
    let mut before = Vec::new();
    loop {
        let said = part.says().unwrap_or_else(|| panic!("`{beginning}` is not said after {before:?}"));
        match said.strip_prefix(beginning) {
            Some(rest) => return (rest.trim().to_owned(), before),
            None => before.push(said),
        }
    }
}

fn term(part: &mut Part, beginning: &str) -> u64 {
    until(part, beginning).0.parse().unwrap()
}

async fn a_stopped_leader_does_not_act_on(place: Place) {
    let mut first = Part::start(PART, place.input("stops"));
    let begun = term(&mut first, "leads");
    let mut second = Part::start(PART, place.input("stays"));
    assert_eq!(term(&mut first, "stops"), begun);
    // Longer than the lease: another leads, and acts.
    let next = term(&mut second, "leads");
    assert!(next > begun, "{next} after {begun}");
    assert_eq!(term(&mut second, "acts"), next);
    signal("-CONT", first.id());
    let (lease, before) = until(&mut first, "old lease:");
    assert!(before.is_empty(), "{before:?}");
    assert_eq!(lease, "LeaseIdMismatch");
    let (fence, before) = until(&mut first, "old term:");
    assert_eq!(fence.as_str(), "refused", "{before:?}");
    assert_eq!(before.len(), 0, "{before:?}");
    // The other one leads all the time, and lets go now.
    let rest = second.finish();
    assert!(rest.iter().all(|said| said.ends_with(&format!("s {next}"))), "{rest:?}");
    // Between its stop and its own next term the first does nothing.
    let (last, before) = until(&mut first, "leads");
    assert!(before.is_empty(), "it acted without leading: {before:?}");
    let last: u64 = last.parse().unwrap();
    assert!(last > next);
    assert_eq!(term(&mut first, "acts"), last);
    first.finish();
    let acts = Fenced::open(&place.open().await, &place.name).await.acts().await;
    assert_eq!(
        acts,
        [(begun, "stops".to_owned()), (next, "stays".to_owned()), (last, "stops".to_owned())],
        "one leader a term"
    );
}

// I16, F76
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_suspended_beyond_its_lease_does_not_act() {
    at_once([Place::sqlite(), Place::azurite()].map(a_stopped_leader_does_not_act_on)).await;
}
