//! Builds a world, runs it and judges its history.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use jobqueue::clock::Clock;
use jobqueue::worker::WorkerBuilder;
use jobqueue::{Error, Storage};
use tokio::time::{sleep, timeout};

use super::checks;
use super::disturbance::Disturbance;
use super::host::Host;
use super::incident::Incident;
use super::ledger::{Entry, Fact};
use super::node::Node;
use super::shared::{Backing, Shared, World};
use super::shrink::shrink;
use super::trace::trace;
use super::weather::Profile;
use super::worker::{ConfigureWorker, Slot};

/// The maximum time for which a process leases a dead letter.
const MAX_LETTER_LEASE: Duration = Duration::from_secs(11 * 60);

type Scenario = Arc<dyn Fn(World) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> + Send + Sync>;
type Judge = Arc<dyn Fn(World) -> Pin<Box<dyn Future<Output = Vec<Finding>> + Send>> + Send + Sync>;

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The broken promise, in a few words. All findings of a kind have the same text.
    pub what: &'static str,
    /// The job, key or blob that the finding concerns.
    pub subject: String,
    /// The events that led to the finding.
    pub detail: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.what, self.subject, self.detail)
    }
}

/// The result of running a world.
#[derive(Debug)]
#[must_use]
pub struct Run {
    /// The findings, or none if every promise was kept.
    pub findings: Vec<Finding>,
    /// The history.
    pub history: Vec<Entry>,
    /// All storage calls, if [`Builder::keep_calls`] was set; empty otherwise.
    pub calls: String,
}

impl Run {
    /// Returns the findings and the events that led to them, shortened for reading.
    pub fn report(&self) -> String {
        trace(&self.findings, &self.history)
    }
}

/// Builds a world. Created by [`World::builder`].
#[derive(Clone)]
#[must_use = "a world is run by `check`, `run` or `run_with`"]
pub struct Builder {
    profile: Profile,
    span: Duration,
    patience: Duration,
    spread: (usize, u32),
    workers: Vec<ConfigureWorker>,
    scenario: Scenario,
    judges: Vec<Judge>,
    logs: bool,
    backing: Backing,
}

impl World {
    /// Returns a builder with the profile [`azure_like`](Profile::azure_like), two minutes of incidents, and
    /// no workers.
    pub fn builder() -> Builder {
        Builder {
            profile: Profile::azure_like(),
            span: Duration::from_secs(120),
            patience: Duration::from_secs(2 * 3600),
            spread: (1, 1),
            workers: Vec::new(),
            scenario: Arc::new(|_| Box::pin(async { Ok(()) })),
            judges: Vec::new(),
            logs: false,
            backing: Backing::AzureLike,
        }
    }
}

impl Builder {
    /// Adds `count` worker processes. `make` adds the handlers, and is called for each process that starts,
    /// also after a crash.
    pub fn workers(
        self,
        count: usize,
        make: impl Fn(WorkerBuilder) -> WorkerBuilder + Send + Sync + 'static,
    ) -> Self {
        self.workers_with(count, move |worker, _| make(worker))
    }

    /// Adds worker processes like [`workers`](Self::workers), and passes the process to `make`.
    pub fn workers_with(
        mut self,
        count: usize,
        make: impl Fn(WorkerBuilder, &Node) -> WorkerBuilder + Send + Sync + 'static,
    ) -> Self {
        let make: ConfigureWorker = Arc::new(make);
        self.workers.extend((0..count).map(|_| Arc::clone(&make)));
        self
    }

    jobqueue_storage::setters! {
        /// Sets the profile, that is, how often calls fail and incidents happen. The default is
        /// [`Profile::azure_like`].
        profile(profile: Profile);

        /// Sets the time during which incidents happen. Faults last at least as long as this and as the
        /// scenario. The default is two minutes.
        span(span: Duration);

        /// Sets how long messages may wait after the last fault before they count as stuck. The default is
        /// two hours of virtual time.
        patience(patience: Duration);
    }

    /// Spreads queues over `shards` shards in `accounts` accounts. The default is one queue in one account.
    pub fn sharded(mut self, accounts: usize, shards: u32) -> Self {
        self.spread = (accounts, shards);
        self
    }

    /// Sets the storage of the accounts. The default is a storage in memory that behaves as Azure Storage
    /// does. `open` is called for each account of each world, with the clock that the account must use. Each
    /// account must start empty.
    ///
    /// Time is virtual here as well. It stands still during each call, so that calls are sequential and the
    /// seed still decides everything. The storage announces no arrivals.
    pub fn storage<F>(mut self, open: impl Fn(Arc<dyn Clock>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Storage> + Send + 'static,
    {
        self.backing = Backing::Still(Arc::new(move |clock| Box::pin(open(clock))));
        self
    }

    /// Sets a storage to which each process has its own connections. `begin` is called for each account of
    /// each world, with the true clock. The function that it returns is called for each process, and once for
    /// the judge.
    ///
    /// The connections run on the world's runtime. Virtual time passes during their requests. They must end
    /// with their process.
    pub fn connections<F>(mut self, begin: impl Fn(Arc<dyn Clock>) -> F + Send + Sync + 'static) -> Self
    where
        F: Fn(&Host) -> Storage + Send + Sync + 'static,
    {
        self.backing = Backing::Connected(Arc::new(move |clock| Box::new(begin(clock))));
        self
    }

    /// Sets the scenario, which runs concurrently with the workers. It sends messages and looks after dead
    /// letters. An error that it returns is a finding.
    pub fn scenario<F>(mut self, scenario: impl Fn(World) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        self.scenario = Arc::new(move |world| Box::pin(scenario(world)));
        self
    }

    /// Adds a judge: a function that judges the history and the stored data by your own rules, after all work
    /// is done and the workers have ended.
    pub fn judge<F>(mut self, judge: impl Fn(World) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Vec<Finding>> + Send + 'static,
    {
        self.judges.push(Arc::new(move |world| Box::pin(judge(world))));
        self
    }

    /// Records all storage calls in [`Run::calls`]. They are not recorded by default.
    pub fn keep_calls(mut self) -> Self {
        self.logs = true;
        self
    }

    /// Runs one world with the incidents that `seed` determines.
    pub fn run(&self, seed: u64) -> Run {
        self.run_with(seed, &self.incidents(seed))
    }

    fn incidents(&self, seed: u64) -> Vec<(Duration, Incident)> {
        Incident::draw_all(seed, self.span, self.profile.incidents_per_minute)
    }

    /// Runs one world with the given incidents.
    ///
    /// # Panics
    /// If tokio's runtime cannot be started.
    pub fn run_with(&self, seed: u64, incidents: &[(Duration, Incident)]) -> Run {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let Ok(runtime) = runtime else { panic!("the runtime of the world does not start") };
        let run = runtime.block_on(async {
            let mut shared = Shared::new(seed, self.profile.clone(), self.spread, &self.backing);
            if self.logs {
                shared.keep_calls();
            }
            let shared = Arc::new(shared);
            self.live(shared, incidents).await
        });
        runtime.shutdown_background();
        run
    }

    /// Runs one world for each seed.
    ///
    /// # Panics
    /// At the first seed with a finding. The text contains the seed and a trace of a shortened run, which
    /// leaves out incidents that the failure does not need.
    pub fn check(&self, seeds: Range<u64>) {
        for seed in seeds {
            let run = self.run(seed);
            let Some(first) = run.findings.first() else { continue };
            let fails = |incidents: &[(Duration, Incident)]| {
                self.run_with(seed, incidents).findings.iter().any(|found| found.what == first.what)
            };
            let needed = shrink(self.incidents(seed), 200, fails);
            let shrunk = self.run_with(seed, &needed);
            panic!("seed {seed}, with {} incidents:\n{}", needed.len(), shrunk.report());
        }
    }

    async fn live(&self, shared: Arc<Shared>, incidents: &[(Duration, Incident)]) -> Run {
        let world = World { shared: Arc::clone(&shared) };
        let open = |(number, make): (usize, &ConfigureWorker)| {
            Slot::open(&shared, format!("worker{number}").into(), Arc::clone(make))
        };
        let slots: Vec<Arc<Slot>> = self.workers.iter().enumerate().map(open).collect();
        // Storage calls hang once there are too many, and so does a scenario that waits for such a call.
        let scenario = async {
            tokio::select! {
                biased;
                played = (self.scenario)(world.clone()) => played,
                () = shared.overrun() => Ok(()),
            }
        };
        let (scenario, ()) = tokio::join!(scenario, async {
            for (at, incident) in incidents {
                sleep(at.saturating_sub(shared.ledger.now())).await;
                incident.inject(&shared, &slots);
            }
        });
        shared.end_faults();
        shared.ledger.note(&"storage".into(), Fact::Incident(Disturbance::FaultsEnd));
        for slot in &slots {
            // Starts a process in each slot whose process has died and has not been replaced by then.
            slot.start_after(Duration::from_secs(30));
        }
        let drained = timeout(self.patience, checks::drained(&shared)).await.is_ok();
        sleep(Duration::from_secs(60)).await;
        let mut findings: Vec<Finding> =
            slots.iter().filter_map(|slot| slot.build_error()).map(world_failure).collect();
        findings.extend(scenario.err().map(|error| world_failure(format!("the scenario failed: {error:?}"))));
        if shared.is_overrun() || !drained {
            findings.extend(checks::waiting(&shared).await);
        }
        if shared.is_overrun() && findings.is_empty() {
            findings.push(world_failure(
                "too many storage calls: the workers or the scenario loop without end".to_owned(),
            ));
        }
        slots.iter().for_each(|slot| slot.close());
        sleep(Duration::from_secs(40)).await;
        shared.end();
        // By then the messages of a process that died are visible again.
        sleep(MAX_LETTER_LEASE).await;
        findings.extend(checks::all(&shared).await);
        for judge in &self.judges {
            findings.extend(judge(world.clone()).await);
        }
        Run { findings, history: shared.ledger.entries(), calls: shared.log() }
    }
}

fn world_failure(detail: String) -> Finding {
    Finding { what: "the world itself failed", subject: "world".to_owned(), detail }
}

jobqueue_storage::debug_fields! {
    Builder { profile, span, workers = workers.len() }
}
