//! Carries the bytes of all connections of an account to the emulator and back, in lockstep with virtual
//! time.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use jobqueue::clock::Clock;
use jobqueue::servicebus::{Answer, Request};
use jobqueue_test_support::servicebus::{Lockstep, Said};
use jobqueue_testing::world::Host;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use super::trouble::{Rates, Trouble, draw_latency, draw_notice_delay};

/// The interval at which the hub checks whether processes have died.
const PROCESS_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// A time that is longer than any world.
const NEVER: Duration = Duration::from_secs(366 * 86_400);
/// The time after which the service sends a heartbeat on a silent connection.
const HEARTBEAT_AFTER: Duration = Duration::from_secs(25);
/// An empty AMQP frame.
const HEARTBEAT: [u8; 8] = [0, 0, 0, 8, 2, 0, 0, 0];
/// The time after which the service ends an idle link, in milliseconds.
const LINK_IDLE_MILLIS: u64 = 600_000;

/// Emulators that are free for reuse.
static UNUSED: Mutex<Vec<Lockstep>> = Mutex::new(Vec::new());

/// The connections of an account. Dropping the hub frees its emulator.
pub(super) struct Hub {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Notified when a connection has data for the service.
    written: Notify,
}

struct State {
    /// `None` once the emulator has been given back.
    emulator: Option<Lockstep>,
    wires: BTreeMap<u32, End>,
    last: u32,
    /// The time of the emulator's next timer.
    due: Option<Instant>,
    rng: StdRng,
    rates: Rates,
}

/// The client's end of a connection, with the bytes in transit.
struct End {
    host: Host,
    is_new: bool,
    to_service: Vec<u8>,
    to_client: Vec<u8>,
    reader: Option<Waker>,
    /// True once the client has closed the connection.
    is_closed: bool,
    /// True once the client receives the end of the stream after the bytes.
    is_ended: bool,
    last_traffic: Instant,
    mute_until: Option<Instant>,
    /// The time at which the service notices the death of the process, if it has died.
    death_noticed: Option<Instant>,
}

impl Hub {
    /// Opens an empty namespace. Call this on the runtime of the world.
    pub(super) fn open(clock: Arc<dyn Clock>, seed: u64, rates: Rates) -> Arc<Self> {
        let unused = UNUSED.lock().unwrap().pop();
        let mut emulator = unused.unwrap_or_else(Lockstep::start);
        emulator.begin(millis(&*clock), seed, json!({ "linkIdleTimeout": LINK_IDLE_MILLIS }));
        let rng = StdRng::seed_from_u64(seed ^ 0x7365_7276_6963_6562);
        let (wires, last, due) = (BTreeMap::new(), 0, None);
        let state = Mutex::new(State { emulator: Some(emulator), wires, last, due, rng, rates });
        let hub = Arc::new(Self { clock, state, written: Notify::new() });
        drop(tokio::spawn(carry(Arc::clone(&hub))));
        hub
    }

    pub(super) fn connect(&self, host: &Host) -> u32 {
        let mut state = self.lock();
        state.last += 1;
        let number = state.last;
        let end = End {
            host: host.clone(),
            is_new: true,
            to_service: Vec::new(),
            to_client: Vec::new(),
            reader: None,
            is_closed: false,
            is_ended: false,
            last_traffic: Instant::now(),
            mute_until: None,
            death_noticed: None,
        };
        state.wires.insert(number, end);
        number
    }

    pub(super) fn request(&self, request: &Request<'_>) -> Answer {
        let now = millis(&*self.clock);
        let mut state = self.lock();
        let emulator = state.emulator();
        emulator.pass(now);
        let (status, body) = emulator.request(request.method, request.target, request.token, request.body);
        self.written.notify_one();
        Answer { status, body }
    }

    /// Accepts bytes from the client. Returns false if the connection has ended.
    pub(super) fn write(&self, number: u32, bytes: &[u8]) -> bool {
        let mut state = self.lock();
        let Some(end) = state.wires.get_mut(&number).filter(|end| !end.is_ended) else { return false };
        end.to_service.extend_from_slice(bytes);
        self.written.notify_one();
        true
    }

    /// Returns bytes for the client, or none at the end of the stream.
    pub(super) fn read(&self, number: u32, max: usize, context: &mut Context<'_>) -> Poll<Vec<u8>> {
        let mut state = self.lock();
        let Some(end) = state.wires.get_mut(&number) else { return Poll::Ready(Vec::new()) };
        // A stopped or killed process receives nothing.
        if end.is_cut_off() || end.to_client.is_empty() && !end.is_ended {
            end.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        let count = max.min(end.to_client.len());
        Poll::Ready(end.to_client.drain(..count).collect())
    }

    pub(super) fn close(&self, number: u32) {
        if let Some(end) = self.lock().wires.get_mut(&number) {
            end.is_closed = true;
            self.written.notify_one();
        }
    }

    /// Carries all bytes in transit, and runs the due timers of the emulator.
    fn exchange(&self) {
        let (now, at) = (millis(&*self.clock), Instant::now());
        let mut state = self.lock();
        let state = &mut *state;
        state.notice_deaths(at);
        let is_due = state.due.is_some_and(|due| due <= at);
        if is_due || state.wires.values().any(|end| end.has_traffic(at)) {
            state.emulator().pass(now);
            state.carry_all(at);
            let (said, next) = state.emulator().settle();
            said.into_iter().for_each(|said| state.deliver(said, at));
            state.due =
                next.map(|next| at + Duration::from_secs_f64((next - now).max(0.0) / 1_000.0) + ROUNDING);
        }
        for end in state.wires.values_mut() {
            end.wake(at);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

/// The emulator counts in milliseconds.
const ROUNDING: Duration = Duration::from_millis(1);

async fn carry(hub: Arc<Hub>) {
    loop {
        let (due, late) = {
            let mut state = hub.lock();
            let check = Instant::now() + if state.wires.is_empty() { NEVER } else { PROCESS_CHECK_INTERVAL };
            (state.due.map_or(check, |due| due.min(check)), draw_latency(&mut state.rng))
        };
        tokio::select! {
            biased;
            () = hub.written.notified() => sleep(late).await,
            () = sleep_until(due) => {}
        }
        hub.exchange();
    }
}

impl State {
    fn emulator(&mut self) -> &mut Lockstep {
        self.emulator.as_mut().unwrap()
    }

    fn notice_deaths(&mut self, at: Instant) {
        for end in self.wires.values_mut().filter(|end| end.host.process.is_killed()) {
            let noticed = *end.death_noticed.get_or_insert_with(|| at + draw_notice_delay(&mut self.rng));
            end.is_closed |= noticed <= at;
            end.to_service.clear();
            end.to_client.clear();
        }
    }

    fn carry_all(&mut self, at: Instant) {
        let Self { emulator, wires, rng, rates, .. } = self;
        let emulator = emulator.as_mut().unwrap();
        wires.retain(|number, end| {
            if std::mem::take(&mut end.is_new) {
                emulator.open(*number);
            }
            let is_used = !end.to_service.is_empty() && !end.is_closed && end.host.may_fail();
            let trouble = is_used.then(|| rates.draw(rng)).flatten();
            if let Some(trouble) = trouble {
                end.host.disturbed(format!("connection {number}: {trouble:?}"));
            }
            match trouble {
                Some(Trouble::Cut { arrives }) => {
                    if arrives {
                        emulator.carry(*number, &end.to_service);
                    }
                    emulator.cut(*number);
                    end.to_service.clear();
                    end.is_ended = true;
                }
                Some(Trouble::Mute(time)) => end.mute_until = Some(at + time),
                _ => {}
            }
            if !end.is_mute(at) && !end.to_service.is_empty() && !end.is_ended {
                emulator.carry(*number, &std::mem::take(&mut end.to_service));
            }
            if let Some(Trouble::Ended { what, choice }) = trouble {
                emulator.strike(*number, what, choice);
            }
            if end.is_closed {
                emulator.cut(*number);
            }
            !end.is_closed
        });
    }

    fn deliver(&mut self, said: Said, at: Instant) {
        let (Said::Bytes(number, _) | Said::End(number)) = said;
        let Some(end) = self.wires.get_mut(&number) else { return };
        end.last_traffic = at;
        match said {
            Said::Bytes(_, bytes) => end.to_client.extend(bytes),
            Said::End(_) => end.is_ended = true,
        }
    }
}

impl End {
    fn is_mute(&self, at: Instant) -> bool {
        self.mute_until.is_some_and(|until| at < until)
    }

    fn is_cut_off(&self) -> bool {
        let process = &self.host.process;
        process.is_stopped() || process.is_killed() || self.is_mute(Instant::now())
    }

    /// Returns whether the connection has something for the service.
    fn has_traffic(&self, at: Instant) -> bool {
        self.is_new || self.is_closed || !self.to_service.is_empty() && !self.is_mute(at) && !self.is_ended
    }

    /// Wakes the client if it has something to read.
    fn wake(&mut self, at: Instant) {
        // The judge gets no heartbeats: it sleeps for months, and connects again afterwards.
        if at > self.last_traffic + HEARTBEAT_AFTER
            && !self.is_ended
            && !self.is_cut_off()
            && !self.host.is_judge
        {
            self.to_client.extend(HEARTBEAT);
            self.last_traffic = at;
        }
        if (!self.to_client.is_empty() || self.is_ended)
            && !self.is_cut_off()
            && let Some(reader) = self.reader.take()
        {
            reader.wake();
        }
    }
}

fn millis(clock: &dyn Clock) -> f64 {
    let since = clock.now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    // Whole milliseconds, as everywhere in the service.
    since.as_millis() as f64
}

impl Drop for Hub {
    fn drop(&mut self) {
        let emulator = self.state.get_mut().ok().and_then(|state| state.emulator.take());
        // After a panic, the emulator may be in the middle of an operation.
        if !std::thread::panicking() {
            UNUSED.lock().unwrap().extend(emulator);
        }
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").finish_non_exhaustive()
    }
}
