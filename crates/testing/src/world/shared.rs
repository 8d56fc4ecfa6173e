//! The shared state of a world, and its handle for scenarios.

use std::fmt::Write as _;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::clock::Clock;
use jobqueue::{Runtime, Storage, memory};
use jobqueue_storage::sync::lock;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::disturbance::Disturbance;
use super::host::Host;
use super::known_messages::KnownMessages;
use super::ledger::{Entry, Fact, Ledger};
use super::node::{Node, spread};
use super::weather::{AccountOutages, BreakPoint, PlannedBreak, Profile};
use crate::faults::{Call, Faulty, StillClock};
use crate::simulation::Process;

/// Opens an account that uses the given clock.
pub(super) type Open =
    Arc<dyn Fn(Arc<dyn Clock>) -> Pin<Box<dyn Future<Output = Storage> + Send>> + Send + Sync>;

/// Opens an account for one process.
pub(super) type OpenFor = Box<dyn Fn(&Host) -> Storage + Send + Sync>;
/// Creates an account to which each process has its own connection.
pub(super) type Begin = Arc<dyn Fn(Arc<dyn Clock>) -> OpenFor + Send + Sync>;

/// The storage behind the accounts of a world.
#[derive(Clone)]
pub(super) enum Backing {
    /// A storage in memory that behaves like Azure Storage.
    AzureLike,
    /// One storage for all processes, whose calls take no virtual time.
    Still(Open),
    /// One storage handle for each process.
    Connected(Begin),
}

/// The maximum number of storage calls: more than a world of some minutes can need.
const MAX_CALLS: u64 = 25_000;

pub(super) struct Shared {
    pub(super) profile: Profile,
    pub(super) clock: Arc<dyn Clock>,
    /// The runtime with the true clock and the seed, for the accounts and the judges. Each process adds its
    /// own clock and gate.
    pub(super) runtime: Runtime,
    pub(super) accounts: Vec<Storage>,
    pub(super) backing: Backing,
    /// The accounts to which each process has its own connection.
    connected: Vec<OpenFor>,
    pub(super) shards: u32,
    pub(super) outages: Vec<AccountOutages>,
    pub(super) ledger: Arc<Ledger>,
    rng: Mutex<StdRng>,
    quiet: Arc<AtomicBool>,
    calls: AtomicU64,
    runs: AtomicU64,
    pub(super) messages: KnownMessages,
    processes: Mutex<Vec<Process>>,
    /// The name of each process, and the break that is planned for it.
    breaks: Mutex<Vec<(Arc<str>, PlannedBreak)>>,
    /// All storage calls, if they are recorded.
    log: Option<Mutex<String>>,
}

impl Shared {
    pub(super) fn new(seed: u64, profile: Profile, spread: (usize, u32), backing: &Backing) -> Self {
        let (accounts, shards) = spread;
        let wall = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600);
        let clock: Arc<dyn Clock> = Arc::new(memory::TokioClock::at(wall));
        let runtime = Runtime::virtual_time(Arc::clone(&clock)).with_seed(seed);
        let (ledger, quiet) = (Arc::new(Ledger::new()), Arc::default());
        let judge = Host {
            name: "judge".into(),
            process: Process::default(),
            runtime: runtime.clone(),
            ledger: Arc::clone(&ledger),
            quiet: Arc::clone(&quiet),
            seed,
            is_judge: true,
        };
        let mut connected = Vec::new();
        let account = |_| match backing {
            Backing::AzureLike => memory::open_on(runtime.clone()),
            Backing::Still(open) => {
                let still = StillClock::of(Arc::clone(&clock));
                let storage = still.answer(open(Arc::clone(&still) as Arc<dyn Clock>));
                Faulty::still(&storage.with_runtime(runtime.clone()), still).storage()
            }
            Backing::Connected(begin) => {
                let open = begin(Arc::clone(&clock));
                let storage = open(&judge);
                connected.push(open);
                storage
            }
        };
        Self {
            profile,
            accounts: (0..accounts.max(1)).map(account).collect(),
            backing: backing.clone(),
            connected,
            clock,
            runtime,
            shards,
            outages: (0..accounts.max(1)).map(|_| AccountOutages::default()).collect(),
            ledger,
            rng: Mutex::new(StdRng::seed_from_u64(seed ^ 0x776f_726c_6473)),
            quiet,
            calls: AtomicU64::new(0),
            runs: AtomicU64::new(0),
            messages: KnownMessages::default(),
            processes: Mutex::default(),
            breaks: Mutex::default(),
            log: None,
        }
    }

    /// Returns the accounts for a process, with its own connections if the storage has any.
    pub(super) fn accounts_for(&self, name: &Arc<str>, process: &Process, runtime: &Runtime) -> Vec<Storage> {
        if self.connected.is_empty() {
            return self.accounts.clone();
        }
        let open = |open: &OpenFor| {
            open(&Host {
                name: Arc::clone(name),
                process: process.clone(),
                runtime: runtime.clone(),
                ledger: Arc::clone(&self.ledger),
                quiet: Arc::clone(&self.quiet),
                seed: self.draw(),
                is_judge: false,
            })
        };
        self.connected.iter().map(open).collect()
    }

    /// Starts recording all storage calls.
    pub(super) fn keep_calls(&mut self) {
        self.log = Some(Mutex::default());
    }

    /// Returns a random number from the world's sequence, which is independent of the library's.
    pub(super) fn draw(&self) -> u64 {
        lock(&self.rng).random()
    }

    pub(super) fn next_run(&self) -> u64 {
        self.runs.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn register(&self, process: &Process, name: &Arc<str>, planned: &PlannedBreak) {
        lock(&self.processes).push(process.clone());
        lock(&self.breaks).push((Arc::clone(name), Arc::clone(planned)));
    }

    /// Records that a planned break of a process did not happen, so that the world did not test the break.
    pub(super) fn note_unreached_break(&self, node: &str, planned: BreakPoint) {
        let text = format!("a planned break of {node} was not reached: {planned:?}");
        self.ledger.note(&"storage".into(), Fact::Incident(Disturbance::BreakNotReached(text)));
    }

    /// Kills all processes, so that nothing more happens.
    pub(super) fn end(&self) {
        lock(&self.processes).iter().for_each(Process::kill);
    }

    /// Returns whether faults still occur.
    pub(super) fn has_faults(&self) -> bool {
        !self.quiet.load(Ordering::Relaxed)
    }

    pub(super) fn end_faults(&self) {
        self.quiet.store(true, Ordering::Relaxed);
        self.outages.iter().for_each(AccountOutages::clear);
        for (node, planned) in &*lock(&self.breaks) {
            if let Some(planned) = lock(planned).take() {
                self.note_unreached_break(node, planned);
            }
        }
    }

    pub(super) fn is_overrun(&self) -> bool {
        self.calls.load(Ordering::Relaxed) > MAX_CALLS
    }

    /// Waits until there are too many storage calls.
    pub(super) async fn overrun(&self) {
        while !self.is_overrun() {
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
    }

    pub(super) fn count_call(&self, node: &str, call: &Call) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if let Some(log) = &self.log {
            // Writing to a string does not fail.
            let _ = writeln!(lock(log), "{:?} {node} {} {}", self.ledger.now(), call.operation, call.subject);
        }
    }

    pub(super) fn log(&self) -> String {
        self.log.as_ref().map(|log| lock(log).clone()).unwrap_or_default()
    }
}

jobqueue_storage::debug_fields! {
    Shared { profile }
}

/// A running world, as its scenario sees it. Cheap to clone; all clones are the same world.
#[derive(Debug, Clone)]
pub struct World {
    pub(super) shared: Arc<Shared>,
}

impl World {
    /// Starts a simulated process with its own storage handles and clock. Worker processes already have
    /// theirs.
    pub fn node(&self, name: impl Into<Arc<str>>) -> Node {
        Node::start(&self.shared, name.into())
    }

    /// Returns the time since the world began.
    pub fn now(&self) -> Duration {
        self.shared.ledger.now()
    }

    /// Records a fact of your own and returns its number.
    pub fn note(&self, node: &Arc<str>, text: impl Into<String>) -> usize {
        self.shared.ledger.note(node, Fact::Noted(text.into()))
    }

    /// Returns a random number that the seed determines.
    pub fn draw(&self) -> u64 {
        self.shared.draw()
    }

    /// Returns the history so far.
    pub fn history(&self) -> Vec<Entry> {
        self.shared.ledger.entries()
    }

    /// Returns the storage accounts themselves, without faults and latency. Use them for judging, not for
    /// working.
    pub fn accounts(&self) -> &[Storage] {
        &self.shared.accounts
    }

    /// Returns the storage of all accounts, without faults and latency, and with the true clock. Use it for
    /// judging, not for working.
    pub fn storage(&self) -> Storage {
        spread(self.shared.accounts.clone(), self.shared.shards)
    }

    /// Returns the true clock, which the storage uses.
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.shared.clock)
    }
}
