//! The state that all parts of a world share, and its handle for scenarios.

use std::fmt::{self, Write as _};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::ledger::{Entry, Fact, Ledger};
use super::node::Node;
use super::weather::{Profile, Weather};
use crate::clock::Clock;
use crate::memory;
use crate::storage::Storage;
use crate::sync::lock;
use crate::task::process::Process;
use crate::testing::faults::{Call, Faulty, StillClock};

/// Opens an account whose time is the clock's.
pub(super) type Open =
    Arc<dyn Fn(Arc<dyn Clock>) -> Pin<Box<dyn Future<Output = Storage> + Send>> + Send + Sync>;

/// The maximum number of storage calls: more than a world of some minutes can need.
const MAX_CALLS: u64 = 25_000;

pub(super) struct Shared {
    pub(super) profile: Profile,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) accounts: Vec<Storage>,
    /// True if the accounts behave as those of Azure Storage do; false if as the storage that the application gave.
    pub(super) is_azure_like: bool,
    pub(super) shards: u32,
    pub(super) weather: Vec<Weather>,
    pub(super) ledger: Ledger,
    rng: Mutex<StdRng>,
    quiet: AtomicBool,
    calls: AtomicU64,
    runs: AtomicU64,
    processes: Mutex<Vec<Process>>,
    /// All storage calls, if they are recorded.
    log: Option<Mutex<String>>,
}

impl Shared {
    pub(super) fn new(seed: u64, profile: Profile, spread: (usize, u32), open: Option<&Open>) -> Self {
        let (accounts, shards) = spread;
        let wall = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600);
        let clock: Arc<dyn Clock> = Arc::new(memory::TokioClock::at(wall));
        let account = |_| match open {
            None => memory::open_with_clock(Arc::clone(&clock)),
            Some(open) => {
                let still = StillClock::of(Arc::clone(&clock));
                let storage = still.answer(open(Arc::clone(&still) as Arc<dyn Clock>));
                Faulty::still(&storage, still).storage()
            }
        };
        Self {
            profile,
            accounts: (0..accounts.max(1)).map(account).collect(),
            is_azure_like: open.is_none(),
            clock,
            shards,
            weather: (0..accounts.max(1)).map(|_| Weather::default()).collect(),
            ledger: Ledger::new(),
            rng: Mutex::new(StdRng::seed_from_u64(seed ^ 0x776f_726c_6473)),
            quiet: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            runs: AtomicU64::new(0),
            processes: Mutex::default(),
            log: None,
        }
    }

    /// Keeps every storage call.
    pub(super) fn keep_calls(&mut self) {
        self.log = Some(Mutex::default());
    }

    /// Returns a random number of the world's own sequence, independent of those that the library draws.
    pub(super) fn draw(&self) -> u64 {
        lock(&self.rng).random()
    }

    pub(super) fn next_run(&self) -> u64 {
        self.runs.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn enter(&self, process: &Process) {
        lock(&self.processes).push(process.clone());
    }

    /// Ends all processes, so that nothing happens any more.
    pub(super) fn end(&self) {
        lock(&self.processes).iter().for_each(Process::kill);
    }

    /// Returns whether faults still occur.
    pub(super) fn has_faults(&self) -> bool {
        !self.quiet.load(Ordering::Relaxed)
    }

    pub(super) fn end_faults(&self) {
        self.quiet.store(true, Ordering::Relaxed);
        self.weather.iter().for_each(Weather::clear);
    }

    pub(super) fn is_overrun(&self) -> bool {
        self.calls.load(Ordering::Relaxed) > MAX_CALLS
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

/// A running world, as its scenario sees it. Cheap to clone; all clones are the same world.
#[derive(Clone)]
pub struct World {
    pub(super) shared: Arc<Shared>,
}

impl World {
    /// Starts a simulated process with storage handles and a clock of its own. Workers already have theirs.
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

    /// Returns the storage accounts themselves, without faults and latency: for judging, not for working.
    pub fn accounts(&self) -> &[Storage] {
        &self.shared.accounts
    }

    /// Returns the storage's clock, which is right.
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.shared.clock)
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("profile", &self.shared.profile).finish_non_exhaustive()
    }
}
