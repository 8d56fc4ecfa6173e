//! Scenes: sequences of actions that random plans would rarely contain.

use std::time::Duration;

use jobqueue::storage::Operation;
use jobqueue_testing::world::Incident;
use rand::RngExt;

use super::action::{Action, ActionKind};
use super::features::Feature;
use super::plan::Drawing;
use super::spec::{Script, Spec};

/// The function that draws the actions of a scene, each with its time in milliseconds since the start and its
/// sender.
type Scene<'a> = fn(&mut Drawing<'a>) -> Vec<(u64, usize, ActionKind)>;

/// The features that each scene needs.
const NEEDED: [&[Feature]; 12] = [
    &[Feature::Redrive],
    &[Feature::Cancel, Feature::Faults],
    &[Feature::Unique, Feature::Cancel, Feature::SenderCrashes],
    &[Feature::InOrder, Feature::Reject, Feature::Outages],
    &[Feature::Forged, Feature::Blobs, Feature::Purge],
    &[Feature::Checkpoints, Feature::Blobs, Feature::Outages],
    &[Feature::Freezes],
    &[Feature::Restarts, Feature::Outages],
    &[Feature::Journal, Feature::Restarts, Feature::Skew],
    &[Feature::Redrive, Feature::Freezes],
    &[Feature::Unique, Feature::Clear],
    &[Feature::Unique, Feature::CancelUnique, Feature::SenderCrashes],
];

impl Drawing<'_> {
    /// Draws the actions of the scenes of this world, if it has any.
    pub(super) fn scenes(&mut self) -> Vec<Action> {
        let scenes: [Scene<'_>; 12] = [
            Self::redriven_job_dies_again,
            Self::cancellation_request_is_lost,
            Self::unique_send_is_taken_over,
            Self::job_dies_before_an_outage,
            Self::payload_is_stolen,
            Self::checkpoint_is_out_of_reach,
            Self::worker_freezes_in_a_get,
            Self::worker_stops_in_an_outage,
            Self::clock_is_set_back,
            Self::job_is_redriven_beside_its_message,
            Self::queue_is_cleared,
            Self::unique_work_is_cancelled_again,
        ];
        let mut actions = Vec::new();
        for (needed, scene) in NEEDED.into_iter().zip(scenes) {
            if !needed.iter().all(|feature| self.has(*feature)) || self.rng.random_bool(0.5) {
                continue;
            }
            let begin = self.rng.random_range(0..30_000);
            let at = |millis| Duration::from_millis(begin + millis);
            actions.extend(scene(self).into_iter().map(|(after, actor, what)| Action {
                at: at(after),
                actor,
                what,
            }));
        }
        actions
    }

    fn rejected(&mut self) -> Spec {
        let script = Script { millis: self.rng.random_range(0..500), reject: true, ..Script::default() };
        Spec { script, delay: None, ttl: None, header: 0, ..self.spec() }
    }

    /// A redrive is slower than the jobs that it puts back, or dies between the put and the deletion.
    fn redriven_job_dies_again(&mut self) -> Vec<(u64, usize, ActionKind)> {
        let jobs = (0..self.rng.random_range(3..6)).map(|_| self.rejected()).collect();
        let redrive =
            ActionKind::Redrive { dies_at: None, per_second: self.rng.random::<bool>().then_some(1) };
        let mut actions = vec![(0, 0, ActionKind::SendAll(jobs))];
        let later = self.rng.random_range(15_000..25_000);
        if self.uses(Feature::SenderCrashes, 0.5) {
            let applied = self.rng.random();
            actions.push((later, 1, ActionKind::KillSenderAt { operation: Operation::Delete, applied }));
        }
        actions.push((later + 1, 1, redrive));
        actions
    }

    /// The request of a cancellation is lost while the job runs.
    fn cancellation_request_is_lost(&mut self) -> Vec<(u64, usize, ActionKind)> {
        let script = Script { millis: self.rng.random_range(0..500), ..Script::default() };
        let spec = Spec { script, delay: None, ..self.spec() };
        let wait = Duration::from_millis(self.rng.random_range(1_000..15_000));
        let after = self.rng.random_range(100..3_000);
        vec![
            (0, 0, ActionKind::Send(spec)),
            (after, 0, ActionKind::LoseRequest { operation: Operation::Delete, wait }),
            (after + 1, 0, ActionKind::Cancel),
        ]
    }

    /// A sender of unique work dies after its put. Another sender takes over and cancels.
    fn unique_send_is_taken_over(&mut self) -> Vec<(u64, usize, ActionKind)> {
        let (_, [first, second]) = self.unique_of_one_key([120, 90]);
        vec![
            (0, 0, ActionKind::KillSenderAt { operation: Operation::Put, applied: true }),
            (1, 0, first),
            (2_000, 1, second),
            (75_000, 1, ActionKind::Cancel),
        ]
    }

    /// The queue is cleared while unique work waits, which is sent again within its window.
    fn queue_is_cleared(&mut self) -> Vec<(u64, usize, ActionKind)> {
        let (_, [first, second]) = self.unique_of_one_key([120, 90]);
        vec![(0, 0, first), (self.rng.random_range(2_000..20_000), 1, ActionKind::Clear), (40_000, 0, second)]
    }

    /// A canceller of unique work dies after its deletion. Another sender cancels the work again, and it is
    /// sent again.
    fn unique_work_is_cancelled_again(&mut self) -> Vec<(u64, usize, ActionKind)> {
        let (key, [first, second]) = self.unique_of_one_key([240, 90]);
        let cancel = || ActionKind::CancelUnique { key: key.clone() };
        vec![
            (0, 0, first),
            (2_000, 1, ActionKind::KillSenderAt { operation: Operation::Delete, applied: true }),
            (2_001, 1, cancel()),
            (60_000, 0, cancel()),
            (80_000, 0, second),
        ]
    }

    /// Draws a key and sends of unique work under it, with these delays in seconds.
    fn unique_of_one_key<const N: usize>(&mut self, delays: [u64; N]) -> (String, [ActionKind; N]) {
        let key = self.key();
        let sends = delays.map(|delay| {
            let (id, delay) = (self.next_id('u'), Some(Duration::from_secs(delay)));
            let spec = Spec { id, key: Some(key.clone()), delay, ttl: None, ..self.spec() };
            ActionKind::Unique { spec, window: Duration::from_secs(300), twice: false }
        });
        (key, sends)
    }

    /// The queues do not answer after a job in order has died and before the next job of its key has begun.
    fn job_dies_before_an_outage(&mut self) -> Vec<(u64, usize, ActionKind)> {
        let (key, time) = (self.key(), Duration::from_millis(self.rng.random_range(20_000..60_000)));
        let mut dying = Spec { in_order: true, key: Some(key.clone()), ..self.rejected() };
        dying.script.millis = 15_000;
        let next = Spec { in_order: true, key: Some(key), delay: None, ttl: None, header: 0, ..self.spec() };
        vec![
            (0, 0, ActionKind::SendAll(vec![dying, next])),
            (13_000, 0, ActionKind::Incident(Incident::QueuesOut { account: 0, time })),
        ]
    }

    /// A job of another queue refers to the payload of a job that still waits, and the dead letter of the
    /// referring job is purged.
    fn payload_is_stolen(&mut self) -> Vec<(u64, usize, ActionKind)> {
        let delay = Some(Duration::from_secs(self.rng.random_range(40..60)));
        let robbed = Spec { bytes: 70_000, delay, ttl: None, header: 0, ..self.spec() };
        let (id, choice) = (self.next_id('f'), self.rng.random());
        vec![
            (0, 0, ActionKind::Send(robbed)),
            (3_000, 1, ActionKind::Steal { id, choice }),
            (30_000, 1, ActionKind::Purge),
        ]
    }

    /// The blobs do not answer when a job that has saved a large checkpoint is retried.
    fn checkpoint_is_out_of_reach(&mut self) -> Vec<(u64, usize, ActionKind)> {
        let script =
            Script { millis: 12_000, fail: 1, checkpoints: 1, large_checkpoints: true, ..Script::default() };
        let spec = Spec { script, bytes: 10, delay: None, ttl: None, header: 0, ..self.spec() };
        let time = Duration::from_millis(self.rng.random_range(20_000..60_000));
        vec![
            (0, 0, ActionKind::Send(spec)),
            (13_000, 0, ActionKind::Incident(Incident::BlobsOut { account: 0, time })),
        ]
    }

    /// A worker is frozen while it receives jobs, for longer than their leases last.
    fn worker_freezes_in_a_get(&mut self) -> Vec<(u64, usize, ActionKind)> {
        let time = Duration::from_millis(self.rng.random_range(25_000..60_000));
        let get = Incident::FreezeAtCall { worker: 0, operation: Operation::Get, applied: true, time };
        let jobs = (0..3).map(|_| Spec { delay: None, ..self.spec() }).collect();
        vec![(0, 0, ActionKind::SendAll(jobs)), (200, 0, ActionKind::Incident(get))]
    }

    /// A worker shuts down while its leases cannot be renewed.
    fn worker_stops_in_an_outage(&mut self) -> Vec<(u64, usize, ActionKind)> {
        let script = Script { millis: 60_000, ..Script::default() };
        let spec = Spec { script, delay: None, ttl: None, ..self.spec() };
        let time = Duration::from_millis(self.rng.random_range(30_000..45_000));
        let worker = self.rng.random_range(0..3);
        vec![
            (0, 0, ActionKind::Send(spec)),
            (13_000, 0, ActionKind::Incident(Incident::QueuesOut { account: 0, time })),
            (self.rng.random_range(14_000..30_000), 0, ActionKind::Incident(Incident::Restart { worker })),
        ]
    }

    /// The clock of a worker is set back after its journal was written once, some 15 seconds after the
    /// worker's start.
    fn clock_is_set_back(&mut self) -> Vec<(u64, usize, ActionKind)> {
        let skew = |millis| ActionKind::Incident(Incident::Skew { worker: 0, millis });
        let (before, after) = (self.short_jobs(), self.short_jobs());
        vec![
            (0, 0, ActionKind::Incident(Incident::Restart { worker: 0 })),
            (8_000, 0, skew(5_000)),
            (self.rng.random_range(14_000..17_000), 0, ActionKind::SendAll(before)),
            (19_500, 0, skew(-5_000)),
            (20_000, 1, ActionKind::SendAll(after)),
        ]
    }

    /// Jobs are redriven while their messages are left, because each worker was frozen before it deleted a
    /// message.
    fn job_is_redriven_beside_its_message(&mut self) -> Vec<(u64, usize, ActionKind)> {
        let mut actions = vec![(0, 0, ActionKind::SendAll((0..3).map(|_| self.rejected()).collect()))];
        for worker in 0..3 {
            let time = Duration::from_millis(self.rng.random_range(30_000..60_000));
            let operation = Operation::Delete;
            let freeze = Incident::FreezeAtCall { worker, operation, applied: false, time };
            actions.push((1, 0, ActionKind::Incident(freeze)));
        }
        let redrive = ActionKind::Redrive { dies_at: None, per_second: None };
        actions.push((self.rng.random_range(8_000..15_000), 1, redrive));
        actions
    }

    fn short_jobs(&mut self) -> Vec<Spec> {
        let mut job = || {
            let script = Script { millis: self.rng.random_range(0..500), ..Script::default() };
            Spec { script, in_order: false, delay: None, ttl: None, header: 0, ..self.spec() }
        };
        (0..4).map(|_| job()).collect()
    }
}
