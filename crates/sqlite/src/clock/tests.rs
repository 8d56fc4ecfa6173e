use super::*;

use std::sync::OnceLock;

use jobqueue_storage::clock::{Clock, ManualClock};
use jobqueue_storage::log::tracing::{Event, Metadata, Subscriber, span, subscriber};

/// A subscriber that panics at each event.
struct PanickingSubscriber;

impl Subscriber for PanickingSubscriber {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &Event<'_>) {
        panic!("boom")
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Otherwise the panic would end the writing thread, and with it the store.
#[test]
fn subscriber_that_panics_does_not_stop_time() {
    let wall = Arc::new(ManualClock::new());
    let clock = StoreClock::new(Runtime::new().with_clock(wall.clone()));
    let before = clock.now(0);
    wall.set(wall.now() - Duration::from_secs(3600));
    let after = subscriber::with_default(PanickingSubscriber, || clock.now(0));
    assert_eq!(after, before);
}

#[test]
fn time_goes_on_when_the_wall_clock_steps_back() {
    let wall = Arc::new(ManualClock::new());
    let clock = StoreClock::new(Runtime::new().with_clock(wall.clone()));
    let before = clock.now(0);
    wall.set(wall.now() - Duration::from_secs(3600));
    assert_eq!(clock.now(0), before);
    wall.advance(Duration::from_secs(1));
    assert_eq!(clock.now(0), before + 1000);
}

#[test]
fn time_is_never_below_what_the_file_has_seen() {
    let clock = StoreClock::new(Runtime::new().with_clock(Arc::new(ManualClock::new())));
    let now = clock.now(0);
    assert_eq!(clock.now(now + 5000), now + 5000);
    assert_eq!(clock.now(0), now + 5000);
}

#[test]
fn clock_that_is_wrong_for_a_moment_is_not_believed() {
    let start = Instant::now();
    let mut state = ClockState { last: 1_000_000, at: Some(start), ..ClockState::default() };
    let mut now = |wall, second| state.now(wall, 0, Some(start + Duration::from_secs(second)));
    assert_eq!(now(1_005_000, 5), 1_005_000);
    let ahead = 1_000_000 + 3_600_000;
    assert_eq!(now(ahead, 6), 1_006_000, "an hour in a second");
    assert_eq!(now(1_007_000, 7), 1_007_000, "the clock was set right");
    assert_eq!(now(ahead, 8), 1_008_000);
    assert_eq!(now(ahead, 67), 1_067_000);
    assert_eq!(now(ahead, 68), ahead, "it has stayed so for a minute");
    assert_eq!(state.leap, ahead - 1_068_000);
}

#[test]
fn step_that_is_believed_at_once_moves_leases_too() {
    let start = Instant::now();
    let mut state = ClockState { last: 1_000_000, at: Some(start), ..ClockState::default() };
    let mut now = |wall, second| state.now(wall, 0, Some(start + Duration::from_secs(second)));
    assert_eq!(now(1_001_900, 1), 1_001_900, "rounding");
    assert_eq!(now(1_010_900, 2), 1_010_900, "a step of eight seconds");
    assert_eq!(state.leap, 8_000);
}

#[test]
fn leap_that_another_process_has_accepted_is_not_counted_again() {
    let start = Instant::now();
    let mut state = ClockState { last: 1_000_000, at: Some(start), ..ClockState::default() };
    let mut now = |wall, seen, second| state.now(wall, seen, Some(start + Duration::from_secs(second)));
    assert_eq!(now(5_000_000, 0, 1), 1_001_000);
    assert_eq!(now(5_061_000, 5_060_500, 62), 5_061_000, "the file says so");
    assert_eq!(state.leap, 0);
}

/// Whatever the wall clock showed in between: once it is right and time has passed, the file's time is
/// right.
#[test]
fn time_is_right_again_after_any_steps_of_the_wall_clock() {
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..200 {
        let (start, mut passed, mut state) = (Instant::now(), 0, ClockState::default());
        let mut now = |passed: u64, wrong: i64| {
            let right = 1_000_000_000 + passed as i64;
            state.now(right + wrong, 0, Some(start + Duration::from_millis(passed))) - right
        };
        now(0, 0);
        for step in 0..6 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let wrong = if step == 5 { 0 } else { (random >> 32) as i64 % 240_000 - 120_000 };
            for _ in 0..(random % 90) {
                passed += 1_000;
                now(passed, wrong);
            }
        }
        for _ in 0..40_000 {
            passed += 1_000;
            now(passed, 0);
        }
        let wrong = now(passed, 0);
        assert_eq!(wrong, 0, "the file's time is wrong by {wrong} ms");
    }
}

#[test]
fn step_back_that_is_put_right_leaves_nothing() {
    let (start, mut state) = (Instant::now(), ClockState::default());
    let mut now = |second: u64, wrong: i64| {
        let right = 1_000_000_000 + 1_000 * second as i64;
        state.now(right + wrong, 0, Some(start + Duration::from_secs(second))) - right
    };
    assert_eq!(now(0, 0), 0);
    assert_eq!(now(1, -3_600_000), -1_000, "it does not go back");
    assert!((2..200).all(|second| now(second, 0) == 0), "the hour was paid back");
}

/// A new clock would believe a wall clock that is briefly wrong, and all processes would follow it.
#[test]
fn handles_of_a_process_share_the_clock_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().canonicalize().unwrap().join("jobs.db");
    std::fs::write(&file, "").unwrap();
    let first = StoreClock::shared(Runtime::new(), &file);
    assert!(Arc::ptr_eq(&first, &StoreClock::shared(Runtime::new(), &file)));
    assert!(Arc::ptr_eq(&first, &StoreClock::of(file.to_str())), "the second handle is closed");
    let name = folder.path().file_name().unwrap();
    let otherwise = folder.path().join("..").join(name).join("jobs.db");
    assert!(Arc::ptr_eq(&first, &StoreClock::of(otherwise.to_str())));
}

/// Both handles read the leap before either has recorded that it moved the leases.
#[test]
fn leap_that_two_handles_have_accepted_is_not_taken_back() {
    let clock = StoreClock::after_a_leap(Runtime::new(), 3_600_000);
    for _ in 0..2 {
        clock.leases_were_moved(3_600_000);
    }
    assert_eq!(clock.now_and_leap(0, &mut 0).1, 0);
}

// audit 33, sending C3: the later leap counted as moved too.
#[test]
fn leap_between_the_records_of_two_handles_still_moves_leases() {
    let clock = StoreClock::after_a_leap(Runtime::new(), 3_600_000);
    clock.leases_were_moved(3_600_000);
    lock(&clock.state).leap += 5_000;
    clock.leases_were_moved(3_600_000);
    assert_eq!(clock.now_and_leap(0, &mut 0).1, 5_000);
}

/// A clock that asserts that the clock of its file is locked.
#[derive(Debug, Default)]
struct LockedClock(OnceLock<Weak<StoreClock>>);

impl Clock for LockedClock {
    fn now(&self) -> SystemTime {
        let clock = self.0.get().and_then(Weak::upgrade).unwrap();
        assert!(clock.state.try_lock().is_err(), "another thread may read and record a later time first");
        SystemTime::UNIX_EPOCH
    }
}

// audit 33, sending C4: a thread that stood still in between took its own time for a step back.
#[test]
fn clocks_are_read_under_the_lock() {
    let wall = Arc::new(LockedClock::default());
    let clock = Arc::new(StoreClock::new(Runtime::new().with_clock(wall.clone())));
    wall.0.set(Arc::downgrade(&clock)).unwrap();
    assert_eq!(clock.now(0), 0);
}

#[test]
fn no_wait_overflows() {
    assert_eq!(after(1, Duration::MAX), LAST_INSTANT);
    assert_eq!(after(1, Duration::from_nanos(1)), 2);
}
