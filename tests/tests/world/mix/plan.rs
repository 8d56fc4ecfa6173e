//! The plan of a world, as data that is drawn from its seed.

use std::time::Duration;

use jobqueue_testing::world::Incident;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt, SeedableRng};

use super::action::{Action, ActionKind};
use super::features::Feature;
use super::spec::{Fan, PartOptions, Script, Spec};

/// The time span of the actions, in milliseconds.
const SPAN_MILLIS: u64 = 60_000;

/// The plan of a world. `noise` is the seed of jitter, latencies and faults.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) noise: u64,
    pub(super) features: Vec<Feature>,
    pub(super) workers: usize,
    pub(super) faults: f64,
    /// The numbers of accounts and shards.
    pub(super) spread: (usize, u32),
    pub(super) actions: Vec<Action>,
}

impl Plan {
    pub(super) fn has(&self, feature: Feature) -> bool {
        self.features.contains(&feature)
    }

    /// Draws a plan that uses some of `features`.
    pub(super) fn draw(seed: u64, features: &[Feature]) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        // Few features with many uses each find other defects than many features with few uses.
        let share = *[0.15, 0.3, 0.5, 0.9].choose(&mut rng).unwrap();
        let chosen: Vec<_> = features.iter().copied().filter(|_| rng.random_bool(share)).collect();
        let has = |feature| chosen.contains(&feature);
        let spread = if has(Feature::Sharding) { (rng.random_range(1..=2), 3) } else { (1, 1) };
        let faults = if has(Feature::Faults) { *[0.01, 0.03, 0.1].choose(&mut rng).unwrap() } else { 0.0 };
        let workers = rng.random_range(1..=3);
        let mut drawing = Drawing { rng, features: &chosen, jobs: 0, batches: 0, sent: Vec::new() };
        let count = drawing.rng.random_range(4..=16);
        let mut actions: Vec<Action> = (0..count).map(|_| drawing.action()).collect();
        actions.extend(drawing.scenes());
        actions.sort_by_key(|action| action.at);
        Self { seed, noise: seed, features: chosen.clone(), workers, faults, spread, actions }
    }

    /// Returns whether no faults, stops or wrong clocks occur.
    pub(super) fn is_quiet(&self) -> bool {
        use Feature::{Crashes, Faults, Freezes, Outages, Restarts, SenderCrashes, Skew};
        let trouble = [Faults, Crashes, Freezes, Outages, Restarts, Skew, SenderCrashes];
        !trouble.into_iter().any(|feature| self.has(feature))
    }

    /// Returns how long workers keep their journals, if they keep them.
    pub(super) fn history(&self) -> Option<Duration> {
        self.has(Feature::Journal).then(|| Duration::from_secs(3600 * [1, 3, 48][self.noise as usize % 3]))
    }

    /// Returns all jobs that are sent, alone or in lists.
    pub(super) fn specs(&self) -> impl Iterator<Item = &Spec> {
        self.actions.iter().flat_map(|action| match &action.what {
            ActionKind::Send(spec) | ActionKind::Unique { spec, .. } => std::slice::from_ref(spec),
            ActionKind::SendAll(specs) => specs,
            _ => &[],
        })
    }

    /// Returns the unique jobs. A sender that takes over from a dead sender sends under the id of one of
    /// them.
    pub(super) fn unique(&self) -> impl Iterator<Item = &Spec> {
        self.actions.iter().filter_map(|action| match &action.what {
            ActionKind::Unique { spec, .. } => Some(spec),
            _ => None,
        })
    }

    /// Returns the list in which a job is sent, by the index of its action, and its place there.
    pub(super) fn place_in_list(&self, id: &str) -> Option<(usize, usize)> {
        let place = |(list, action): (usize, &Action)| match &action.what {
            ActionKind::SendAll(specs) => Some((list, specs.iter().position(|spec| spec.id == id)?)),
            _ => None,
        };
        self.actions.iter().enumerate().find_map(place)
    }

    /// Returns all batches, including those that jobs send.
    pub(super) fn fans(&self) -> Vec<&Fan> {
        let mut found: Vec<&Fan> = Vec::new();
        let planned = self.actions.iter().filter_map(|action| match &action.what {
            ActionKind::Batch(fan) => Some(fan),
            _ => None,
        });
        found.extend(planned);
        found.extend(self.specs().filter_map(|spec| spec.script.fan.as_deref()));
        let mut at = 0;
        while let Some(fan) = found.get(at).copied() {
            found.extend(fan.children.iter().chain([&fan.join]).filter_map(|child| child.fan.as_deref()));
            at += 1;
        }
        found
    }
}

/// The function that draws an action of a feature.
type Kind<'a> = (Feature, fn(&mut Drawing<'a>) -> ActionKind);

pub(super) struct Drawing<'a> {
    pub(super) rng: StdRng,
    features: &'a [Feature],
    jobs: u32,
    batches: u32,
    /// The jobs that have been drawn.
    sent: Vec<Spec>,
}

impl<'a> Drawing<'a> {
    pub(super) fn has(&self, feature: Feature) -> bool {
        self.features.contains(&feature)
    }

    /// Draws whether to use a feature, with probability `share` if the world has it.
    pub(super) fn uses(&mut self, feature: Feature, share: f64) -> bool {
        self.has(feature) && self.rng.random_bool(share)
    }

    fn seconds(&mut self, most: u64) -> Duration {
        Duration::from_millis(self.rng.random_range(200..most * 1_000))
    }

    fn action(&mut self) -> Action {
        let at = Duration::from_millis(self.rng.random_range(0..SPAN_MILLIS));
        let actor = self.rng.random_range(0..2);
        Action { at, actor, what: self.what() }
    }

    fn what(&mut self) -> ActionKind {
        let mut rare: Vec<fn(&mut Self) -> ActionKind> = Vec::new();
        let kinds: &[Kind<'a>] = &[
            (Feature::SendAll, |draw| {
                ActionKind::SendAll((0..draw.rng.random_range(2..6)).map(|_| draw.spec()).collect())
            }),
            (Feature::Unique, Self::unique),
            (Feature::Cancel, |_| ActionKind::Cancel),
            (Feature::CancelUnique, |draw| ActionKind::CancelUnique { key: draw.key() }),
            (Feature::Batches, |draw| ActionKind::Batch(draw.fan(1))),
            (Feature::Forged, Self::forge),
            (Feature::Forged, |draw| ActionKind::Steal { id: draw.next_id('f'), choice: draw.rng.random() }),
            (Feature::Versions, Self::release),
            (Feature::Redrive, |draw| {
                let dies = draw.uses(Feature::SenderCrashes, 0.5);
                let slow = draw.rng.random_bool(0.3);
                ActionKind::Redrive {
                    dies_at: dies.then(|| draw.rng.random_range(3..15)),
                    per_second: slow.then_some(1),
                }
            }),
            (Feature::Purge, |_| ActionKind::Purge),
            (Feature::Clear, |_| ActionKind::Clear),
            (Feature::Sweep, |_| ActionKind::Sweep),
            (Feature::Journal, |_| ActionKind::Search),
            (Feature::Pause, |draw| ActionKind::Pause { time: draw.seconds(40) }),
            (Feature::PausesWithEnd, |draw| ActionKind::PauseFor { time: draw.seconds(90) }),
            (Feature::CancelPlans, |draw| ActionKind::CancelAll { key: draw.key() }),
            (Feature::Canaries, |_| ActionKind::RedriveAfterCanary),
            (Feature::Threshold, |draw| ActionKind::Threshold { attempts: draw.rng.random_range(1..6) }),
            (Feature::SenderCrashes, |draw| ActionKind::KillSender {
                call: draw.rng.random_range(0..12),
                applied: draw.rng.random(),
            }),
        ];
        rare.extend(kinds.iter().filter(|(feature, _)| self.has(*feature)).map(|(_, draw)| *draw));
        if let Some(incident) = self.incident() {
            return incident;
        }
        if !rare.is_empty() && self.rng.random_bool(0.5) {
            let draw = *rare.choose(&mut self.rng).unwrap();
            return draw(self);
        }
        ActionKind::Send(self.spec())
    }

    fn incident(&mut self) -> Option<ActionKind> {
        if !self.rng.random_bool(0.25) {
            return None;
        }
        let incident = Incident::draw(self.rng.next_u64());
        let feature = match incident {
            Incident::Kill { .. } | Incident::KillAtCall { .. } => Feature::Crashes,
            Incident::Freeze { .. } | Incident::FreezeAtCall { .. } => Feature::Freezes,
            Incident::Skew { .. } => Feature::Skew,
            Incident::Restart { .. } => Feature::Restarts,
            _ => Feature::Outages,
        };
        self.has(feature).then_some(ActionKind::Incident(incident))
    }

    pub(super) fn key(&mut self) -> String {
        format!("k{}", self.rng.random_range(0..2))
    }

    pub(super) fn next_id(&mut self, letter: char) -> String {
        self.jobs += 1;
        format!("{letter}{}.", self.jobs)
    }

    /// Draws a job, sometimes a copy of an earlier one with another source.
    pub(super) fn spec(&mut self) -> Spec {
        let spec = if self.uses(Feature::Sources, 0.3) { self.namesake() } else { None };
        let spec = spec.unwrap_or_else(|| self.new_spec());
        self.sent.push(spec.clone());
        spec
    }

    fn namesake(&mut self) -> Option<Spec> {
        // A batch belongs to one job.
        let namesake = self.sent.choose(&mut self.rng).filter(|spec| spec.script.fan.is_none())?.clone();
        let source = self.next_id('s');
        let id = format!("/{source} {}", namesake.identity().1);
        Some(Spec { id, ..namesake })
    }

    fn new_spec(&mut self) -> Spec {
        let in_order = self.uses(Feature::InOrder, 0.7);
        let mut id = self.next_id('j');
        if self.jobs > 1 && self.uses(Feature::Sources, 0.4) {
            // Another sender uses the same id, earlier or later.
            id = format!("/sender{} j{}.", self.jobs, self.rng.random_range(1..self.jobs));
        }
        let key = (in_order || self.rng.random_bool(0.2)).then(|| self.key());
        let large = self.uses(Feature::Blobs, 0.5);
        let delay = self.uses(Feature::Delayed, 0.3).then(|| self.seconds(30));
        let ttl = (!in_order && self.uses(Feature::TimeToLive, 0.3))
            .then(|| Duration::from_secs(31) + self.seconds(60));
        let script = self.script(1);
        let resend = self.has(Feature::Resend);
        let header = if self.uses(Feature::Headers, 0.3) { self.rng.random_range(60_000..65_500) } else { 0 };
        Spec { id, script, bytes: if large { 70_000 } else { 10 }, header, key, in_order, delay, ttl, resend }
    }

    fn script(&mut self, depth: u32) -> Script {
        let long = self.rng.random_bool(0.1);
        let fail = if self.uses(Feature::Fail, 0.3) { self.rng.random_range(1..=4) } else { 0 };
        Script {
            millis: if long { self.rng.random_range(5_000..60_000) } else { self.rng.random_range(0..2_000) },
            fail,
            panic: self.uses(Feature::Panic, 0.4),
            snooze: if self.uses(Feature::Snooze, 0.2) { self.rng.random_range(1..3) } else { 0 },
            reject: self.uses(Feature::Reject, 0.15),
            checkpoints: if self.uses(Feature::Checkpoints, 0.4) { self.rng.random_range(1..4) } else { 0 },
            large_checkpoints: self.uses(Feature::Blobs, 0.4),
            step: self.uses(Feature::Steps, 0.3),
            once: self.uses(Feature::Once, 0.3),
            fan: (depth < 3 && self.uses(Feature::Nested, 0.15)).then(|| Box::new(self.fan(depth + 1))),
            fan_in_step: self.uses(Feature::Steps, 0.5),
        }
    }

    fn fan(&mut self, depth: u32) -> Fan {
        self.batches += 1;
        let id = format!("b{}-", self.batches);
        let children: Vec<_> = (0..self.rng.random_range(0..5)).map(|_| self.script(depth + 1)).collect();
        let options = children.iter().map(|_| self.part_options(&id)).collect();
        let join =
            Script { millis: 200, fail: u32::from(self.uses(Feature::Fail, 0.2)), ..Script::default() };
        let interrupted = depth == 1 && self.uses(Feature::Interrupted, 0.5);
        Fan { id, children, options, interrupted, goes_on: self.rng.random(), join }
    }

    /// Draws the options of a child. The children of a batch share a few keys.
    fn part_options(&mut self, batch: &str) -> PartOptions {
        let delay =
            self.uses(Feature::Delayed, 0.2).then(|| Duration::from_secs(self.rng.random_range(1..20)));
        let in_order =
            self.uses(Feature::InOrder, 0.3).then(|| format!("{batch}{}", self.rng.random_range(0..2)));
        let mut options = PartOptions { delay, in_order, ..PartOptions::default() };
        if options.in_order.is_none() && self.uses(Feature::TimeToLive, 0.2) {
            options.ttl = Some(Duration::from_secs(self.rng.random_range(31..90)));
        }
        options
    }

    fn unique(&mut self) -> ActionKind {
        let mut spec = self.spec();
        // A sender that joins learns only the id.
        spec.id = self.next_id('u');
        (spec.key, spec.ttl) = (Some(self.key()), None);
        let twice = self.uses(Feature::Twice, 0.4);
        ActionKind::Unique { spec, window: Duration::from_secs(self.rng.random_range(5..120)), twice }
    }

    fn forge(&mut self) -> ActionKind {
        let (id, batch) = (self.next_id('f'), format!("b{}-", self.rng.random_range(1..4)));
        ActionKind::Forge {
            id,
            batch,
            index: self.rng.random_range(0..3),
            continues: self.rng.random_bool(0.3),
        }
    }

    fn release(&mut self) -> ActionKind {
        let count = self.rng.random_range(2..=4);
        ActionKind::Release { ids: (0..count).map(|_| self.next_id('r')).collect(), newer: self.rng.random() }
    }
}
