//! The part that all models share: processes over one storage, and the faults that may happen.

mod recovery;

use std::collections::{BTreeMap, HashSet};
use std::fmt::Debug;
use std::hash::RandomState;
use std::sync::Mutex;

use jobqueue::storage::StoreErrorKind;
use stateright::{Model as Checked, Property};

use crate::process::{Birth, Next, Node, Program, Start, Tree};
use crate::store::{Answer, Broken, Fact, LEAP, Request, Store};

/// A property of every state.
pub type Holds = fn(&Model, &State) -> bool;

/// The number of times that each fault may happen in a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// Processes that die.
    pub crashes: u8,
    /// Requests that are applied, but not answered.
    pub lost_answers: u8,
    /// Puts of messages that are not answered, and applied later.
    pub late_puts: u8,
    /// Requests that are refused, because the storage is unreachable for a moment.
    pub refusals: u8,
    /// Leases that end while their holder works.
    pub lost_leases: u8,
    /// Jobs that fail permanently.
    pub deaths: u8,
    /// Leaps of the clock. Processes that are running keep the former time.
    pub leaps: u8,
}

impl Faults {
    /// No faults.
    pub const NONE: Self =
        Self { crashes: 0, lost_answers: 0, late_puts: 0, refusals: 0, lost_leases: 0, deaths: 0, leaps: 0 };
}

/// The parts of one model.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The programs.
    pub programs: &'static [Program],
    /// The number of workers that run at the same time.
    pub workers: usize,
    /// True if workers start only after the first program has ended, so that its steps do not interleave with
    /// theirs.
    pub sends_first: bool,
    /// The number of deliveries of a message beyond which the checker does not explore.
    pub deliveries: u16,
    /// The properties.
    pub properties: &'static [(&'static str, Holds)],
    /// Returns whether everything has ended as it should.
    pub has_ended: fn(&State) -> bool,
}

/// A live process.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Process {
    /// The index of its program.
    program: usize,
    node: Node,
    /// The leases that it has taken: the messages, each with the receipt with which the lease began.
    leases: Vec<(u16, u16)>,
}

/// The storage, the processes, the remaining faults and the recorded facts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// The storage.
    pub store: Store,
    /// The live processes, sorted, so that their order carries no information.
    processes: Vec<Process>,
    /// The number of starts of each program that is not a worker.
    starts: Vec<u8>,
    /// True for each program that has ended successfully.
    ended: Vec<bool>,
    /// Puts that have not arrived yet.
    in_flight: Vec<Request>,
    /// The faults that may still happen.
    pub faults: Faults,
    /// The facts that applications have noted, each with its count, up to three.
    pub facts: BTreeMap<Fact, u8>,
}

impl State {
    /// Returns how often a fact was noted, up to three times.
    pub fn count(&self, word: &'static str, job: u8) -> u8 {
        self.facts.get(&(word, job)).copied().unwrap_or_default()
    }

    /// Returns whether this program has ended successfully.
    pub fn has_run(&self, program: usize) -> bool {
        self.ended[program]
    }

    fn is_held(&self, id: u16, lease: u16) -> bool {
        self.processes.iter().any(|process| process.leases.contains(&(id, lease)))
    }
}

/// A step of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A program starts. A worker starts with this message.
    Start(usize, Option<u16>),
    /// The request of a process is answered.
    Answer(usize),
    /// A handler learns that its job fails permanently.
    Fail(usize),
    /// The request is applied, but not answered.
    LoseAnswer(usize),
    /// The request is not answered, and is applied later.
    Delay(usize),
    /// The request is refused.
    Refuse(usize),
    /// A process dies.
    Crash(usize),
    /// The lease of a message ends.
    EndLease(u16),
    /// A put arrives late.
    Arrive,
    /// The clock leaps by more than any time that the library waits for.
    Leap,
}

/// A scenario under faults.
#[derive(Debug)]
pub struct Model {
    /// The scenario.
    pub scenario: Scenario,
    /// The faults that may happen.
    pub faults: Faults,
    /// The rule that the storage breaks, if it has a planted defect.
    pub broken: Option<Broken>,
    tree: Tree,
    hashes: RandomState,
    recovers: Mutex<HashSet<u64>>,
}

impl Model {
    /// Returns the model of a scenario under these faults.
    pub fn new(scenario: Scenario, faults: Faults) -> Self {
        let (tree, hashes, recovers) = (Tree::default(), RandomState::new(), Mutex::default());
        Self { scenario, faults, broken: None, tree, hashes, recovers }
    }

    /// Plants a defect: the storage breaks this rule.
    #[must_use]
    pub fn broken(mut self, rule: Broken) -> Self {
        self.broken = Some(rule);
        self
    }

    /// Returns the next act of each live process, for readers of a counterexample.
    pub fn acts(&self, state: &State) -> Vec<String> {
        let act = |process: &Process| {
            let program = self.scenario.programs[process.program].name;
            format!("{program}: {:?}", self.tree.next(process.node))
        };
        state.processes.iter().map(act).collect()
    }

    /// Returns how many faults have happened that can make a process repeat a step.
    pub fn causes(&self, state: &State) -> u8 {
        let sum = |faults: &Faults| {
            faults.crashes
                + faults.lost_answers
                + faults.late_puts
                + faults.refusals
                + faults.lost_leases
                + faults.leaps
        };
        sum(&self.faults) - sum(&state.faults)
    }

    /// Adds the programs that may start. `again` lifts the limits of operators.
    fn starts(&self, state: &State, again: bool, actions: &mut Vec<Action>) {
        let workers = state.processes.iter().filter(|process| self.is_worker(process.program)).count();
        for (number, program) in self.scenario.programs.iter().enumerate() {
            let runs = state.processes.iter().any(|process| process.program == number);
            let may_start = |limit: u8| !runs && (again || state.starts[number] < limit);
            match program.start {
                Start::Once if !runs && !state.ended[number] => actions.push(Action::Start(number, None)),
                Start::Message(queue)
                    if workers < self.scenario.workers && (state.ended[0] || !self.scenario.sends_first) =>
                {
                    let free = state.store.of_queue(queue).filter(|message| message.lease.is_none());
                    let free = free.filter(|message| again || message.deliveries < self.scenario.deliveries);
                    actions.extend(free.map(|message| Action::Start(number, Some(message.receipt.id))));
                }
                Start::While(queue, limit)
                    if may_start(limit)
                        && state.store.of_queue(queue).any(|message| message.lease.is_none()) =>
                {
                    actions.push(Action::Start(number, None));
                }
                Start::Quiet(limit)
                    if may_start(limit) && state.processes.is_empty() && state.in_flight.is_empty() =>
                {
                    actions.push(Action::Start(number, None));
                }
                _ => {}
            }
        }
    }

    fn is_worker(&self, program: usize) -> bool {
        matches!(self.scenario.programs[program].start, Start::Message(_))
    }

    fn apply(&self, state: &mut State, action: Action) {
        match action {
            Action::Start(program, message) => self.start(state, program, message),
            Action::Answer(place) | Action::Fail(place) => self.apply_request(state, place, action),
            Action::LoseAnswer(place) => {
                state.faults.lost_answers -= 1;
                let Next::Asks(request) = &*self.tree.next(state.processes[place].node) else { return };
                state.store.apply(request, self.broken);
                self.answer(state, place, Answer::Lost);
            }
            Action::Delay(place) => {
                state.faults.late_puts -= 1;
                let Next::Asks(request) = &*self.tree.next(state.processes[place].node) else { return };
                state.in_flight.push(request.clone());
                self.answer(state, place, Answer::Lost);
            }
            Action::Refuse(place) => {
                state.faults.refusals -= 1;
                self.answer(state, place, Answer::Refused(StoreErrorKind::Unavailable));
            }
            Action::Crash(place) => {
                state.faults.crashes -= 1;
                state.processes.remove(place);
            }
            Action::EndLease(id) => {
                let found = state.store.messages.iter_mut().find(|message| message.receipt.id == id);
                let Some(lease) = found.and_then(|message| message.lease.take()) else { return };
                state.faults.lost_leases -= u8::from(state.is_held(id, lease));
            }
            Action::Arrive => {
                let request = state.in_flight.remove(0);
                state.store.apply(&request, self.broken);
            }
            Action::Leap => {
                state.faults.leaps -= 1;
                state.store.minute += LEAP;
            }
        }
        // Processes that differ only in their order make no different state.
        state.processes.sort();
    }

    /// Answers the request of a process. For `Action::Fail`, the program fails instead.
    fn apply_request(&self, state: &mut State, place: usize, action: Action) {
        let Next::Asks(request) = &*self.tree.next(state.processes[place].node) else { return };
        let answer = match (request, action) {
            (Request::Fails { .. }, Action::Fail(_)) => {
                state.faults.deaths -= 1;
                Answer::Fails(true)
            }
            _ => state.store.apply(request, self.broken),
        };
        if let (Request::Get { .. }, Answer::Messages(messages)) = (request, &answer) {
            let leases = messages.iter().map(|message| (message.receipt.id, message.receipt.number));
            state.processes[place].leases.extend(leases);
        }
        self.answer(state, place, answer);
    }

    fn start(&self, state: &mut State, program: usize, message: Option<u16>) {
        if matches!(self.scenario.programs[program].start, Start::Quiet(_)) {
            state.store.minute += LEAP;
        }
        let leased = message.and_then(|id| state.store.lease(id));
        // The delivery seeds a worker, so that states do not differ by the number of its starts.
        let run = match &leased {
            Some(leased) => u32::from(leased.receipt.id) * 1_000 + u32::from(leased.receipt.number),
            None => u32::from(state.starts[program]),
        };
        if !self.is_worker(program) {
            state.starts[program] = state.starts[program].saturating_add(1);
        }
        let node =
            self.tree.begin(self.scenario.programs, Birth { program, run, minute: state.store.minute });
        state.processes.push(Process { program, node, leases: Vec::new() });
        let place = state.processes.len() - 1;
        if let Some(leased) = leased {
            state.processes[place].leases.push((leased.receipt.id, leased.receipt.number));
            self.answer(state, place, Answer::Messages(vec![leased]));
        } else {
            self.advance(state, place);
        }
    }

    fn answer(&self, state: &mut State, place: usize, answer: Answer) {
        let process = &mut state.processes[place];
        process.node = self.tree.answer(self.scenario.programs, process.node, answer);
        self.advance(state, place);
    }

    /// Records the facts that the process notes next, and removes the process if it has ended.
    fn advance(&self, state: &mut State, place: usize) {
        match &*self.tree.next(state.processes[place].node) {
            Next::Asks(Request::Note(fact)) => {
                let count = state.facts.entry(*fact).or_default();
                *count = (*count + 1).min(3);
                self.answer(state, place, Answer::Changed(0));
            }
            Next::Asks(_) => {}
            Next::Ended(well) => {
                let process = state.processes.remove(place);
                state.ended[process.program] |= *well;
            }
        }
    }
}

impl Checked for Model {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let programs = self.scenario.programs.len();
        vec![State {
            store: Store::default(),
            processes: Vec::new(),
            starts: vec![0; programs],
            ended: vec![false; programs],
            in_flight: Vec::new(),
            faults: self.faults,
            facts: BTreeMap::new(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.starts(state, false, actions);
        let faults = &state.faults;
        for (place, process) in state.processes.iter().enumerate() {
            let Next::Asks(request) = &*self.tree.next(process.node) else { continue };
            let of_storage = !request.is_of_application();
            actions.push(Action::Answer(place));
            let possible = [
                (faults.crashes > 0, Action::Crash(place)),
                (faults.deaths > 0 && matches!(request, Request::Fails { .. }), Action::Fail(place)),
                (faults.lost_answers > 0 && request.changes(), Action::LoseAnswer(place)),
                (faults.late_puts > 0 && matches!(request, Request::Put { .. }), Action::Delay(place)),
                (faults.refusals > 0 && of_storage, Action::Refuse(place)),
            ];
            actions.extend(
                possible.into_iter().filter_map(|(is_possible, action)| is_possible.then_some(action)),
            );
        }
        for message in &state.store.messages {
            let id = message.receipt.id;
            if message.lease.is_some_and(|lease| faults.lost_leases > 0 || !state.is_held(id, lease)) {
                actions.push(Action::EndLease(id));
            }
        }
        if !state.in_flight.is_empty() {
            actions.push(Action::Arrive);
        }
        if faults.leaps > 0 {
            actions.push(Action::Leap);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.apply(&mut next, action);
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let ends = Property::sometimes(ENDS, |model: &Self, state: &State| (model.scenario.has_ended)(state));
        let holds = self.scenario.properties.iter().map(|(name, holds)| Property::always(name, *holds));
        holds.chain([ends]).collect()
    }
}

/// The property that some run ends as it should, which each model has.
pub const ENDS: &str = "all ends";
