//! Programs that use the library, run request by request.

mod port;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use jobqueue::clock::TokioClock;
use jobqueue::{Error, Runtime, Storage};

use crate::store::{Answer, LEAP, Request};
use port::Script;

const MINUTE: Duration = Duration::from_secs(60);

/// Returns the time at which a minute of a [`Store`](crate::store::Store) begins.
fn begin_of(minute: u32) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600) + MINUTE * minute
}

/// The run of a program, from beginning to end.
pub type Run = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// A program.
#[derive(Clone, Copy)]
pub struct Program {
    /// The name in counterexamples.
    pub name: &'static str,
    /// The condition under which it starts.
    pub start: Start,
    /// Runs the program.
    pub run: fn(Storage, Application) -> Run,
}

/// The condition under which a program may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Immediately, and again after it has died or failed. Only one instance runs at a time.
    Once,
    /// A worker, which starts with a free message of this queue, leases it, and receives no other message.
    Message(&'static str),
    /// An operator, which starts while this queue has a free message, at most this number of times.
    While(&'static str, u8),
    /// Starts while no other process runs, at most this number of times, each after a leap of the clock.
    Quiet(u8),
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The application behind a program, which the model simulates.
#[derive(Debug, Clone)]
pub struct Application(Arc<Script>);

impl Application {
    /// Notes a fact.
    pub async fn note(&self, word: &'static str, job: u8) {
        self.0.ask(Request::Note((word, job))).await;
    }

    /// Returns whether the job fails permanently now.
    pub async fn fails(&self, job: u8) -> bool {
        self.0.ask(Request::Fails { job }).await == Answer::Fails(true)
    }
}

/// The next act of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// The process makes a request.
    Asks(Request),
    /// The process has ended, successfully if true.
    Ended(bool),
}

/// A process between two requests, as the index of a node in a tree of requests and answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node(u32);

/// The start of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Birth {
    /// The index of the program.
    pub program: usize,
    /// The number of the run or, for a worker, of its delivery. It seeds the random numbers.
    pub run: u32,
    /// The time of the start; see [`Store::minute`](crate::store::Store::minute).
    pub minute: u32,
}

/// The cached requests of all processes.
#[derive(Debug, Default)]
pub struct Tree {
    nodes: Mutex<Nodes>,
}

#[derive(Debug, Default)]
struct Nodes {
    all: Vec<(Origin, Arc<Next>)>,
    known: HashMap<Origin, Node>,
}

/// The start of a process, or a node and the answer that leads on from it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Origin {
    Birth(Birth),
    Answer(Node, Answer),
}

impl Tree {
    /// Returns the node of a process that starts.
    pub fn begin(&self, programs: &[Program], birth: Birth) -> Node {
        self.node(programs, Origin::Birth(birth))
    }

    /// Returns the node of a process after an answer.
    pub fn answer(&self, programs: &[Program], node: Node, answer: Answer) -> Node {
        self.node(programs, Origin::Answer(node, answer))
    }

    /// Returns the next act of the process.
    pub fn next(&self, node: Node) -> Arc<Next> {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&nodes.all[node.0 as usize].1)
    }

    fn node(&self, programs: &[Program], origin: Origin) -> Node {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = nodes.known.get(&origin) {
            return *node;
        }
        let (birth, script) = nodes.script(&origin);
        let next = Arc::new(run(programs[birth.program], birth, script));
        let node = Node(u32::try_from(nodes.all.len()).expect("fewer nodes than u32 counts"));
        nodes.all.push((origin.clone(), next));
        nodes.known.insert(origin, node);
        node
    }
}

impl Nodes {
    /// Returns the start of a process, and its requests with their answers.
    fn script(&self, origin: &Origin) -> (Birth, Vec<(Request, Answer)>) {
        let mut script = Vec::new();
        let mut origin = origin;
        loop {
            match origin {
                Origin::Birth(birth) => {
                    script.reverse();
                    return (*birth, script);
                }
                Origin::Answer(node, answer) => {
                    let (from, next) = &self.all[node.0 as usize];
                    let Next::Asks(request) = &**next else { panic!("a process that has ended is answered") };
                    script.push((request.clone(), answer.clone()));
                    origin = from;
                }
            }
        }
    }
}

/// Runs a program with these answers, and returns its next act.
fn run(program: Program, birth: Birth, script: Vec<(Request, Answer)>) -> Next {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    tokio.expect("a runtime needs no resources").block_on(async {
        let script = Arc::new(Script::new(script, matches!(program.start, Start::Message(_)), birth.minute));
        let clock = Arc::new(TokioClock::at(begin_of(birth.minute)));
        let seed = birth.program as u64 * 1_000_000_000 + u64::from(birth.run);
        let runtime = Runtime::virtual_time(clock).with_seed(seed);
        let storage =
            Storage::new(Arc::clone(&script) as _, Arc::clone(&script) as _, "a model").with_runtime(runtime);
        let ended = (program.run)(storage, Application(Arc::clone(&script)));
        tokio::select! {
            biased;
            request = script.next() => Next::Asks(request),
            ended = tokio::time::timeout(LEAP * MINUTE, ended) => Next::Ended(ended.expect("a program ends").is_ok()),
        }
    })
}
