//! Checks every cell of CONTRACT 1.3: rows are actions, columns are states.

use super::*;
use StoreErrorKind as K;

const START: u64 = 1_767_225_600;
const SECOND: Duration = Duration::from_secs(1);

fn at(second: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(START + second)
}

fn ids() -> (LeaseId, LeaseId) {
    let parse = |text| LeaseId::parse(text).unwrap();
    (parse("aaaaaaaa-0000-4000-8000-000000000000"), parse("bbbbbbbb-0000-4000-8000-000000000000"))
}

const TERM: LeaseDuration = LeaseDuration::Finite(Duration::from_secs(30));

/// Returns the five states at second 100; A is the holder if there is one.
fn states() -> [BlobLease; 5] {
    let (a, _) = ids();
    [
        BlobLease::Available,
        held(at(90), TERM, a),
        BlobLease::Breaking { id: a, until: at(105) },
        BlobLease::Breaking { id: a, until: at(95) },
        held(at(60), TERM, a),
    ]
}

fn row<T>(action: impl Fn(BlobLease) -> Result<T, K>) -> [Result<T, K>; 5] {
    states().map(action)
}

#[test]
fn the_columns_are_the_five_states() {
    use LeaseState as S;
    let names = states().map(|lease| lease.state(at(100)));
    assert_eq!(names, [S::Available, S::Leased, S::Breaking, S::Broken, S::Expired]);
}

#[test]
fn acquire() {
    let (a, b) = ids();
    let taken = |id| Ok(held(at(100), TERM, id));
    let busy = Err(K::LeaseAlreadyPresent);
    assert_eq!(row(|l| l.acquire(at(100), TERM, a)), [taken(a), taken(a), busy, taken(a), taken(a)]);
    assert_eq!(row(|l| l.acquire(at(100), TERM, b)), [taken(b), busy, busy, taken(b), taken(b)]);
}

#[test]
fn renew() {
    let (a, b) = ids();
    let renewed = Ok(held(at(100), TERM, a));
    let (none, other, broken) = (Err(K::LeaseNotPresent), Err(K::LeaseIdMismatch), Err(K::LeaseBroken));
    assert_eq!(row(|l| l.renew(at(100), a)), [none, renewed, broken, broken, renewed]);
    assert_eq!(row(|l| l.renew(at(100), b)), [none, other, other, other, other]);
}

#[test]
fn change() {
    let (a, b) = ids();
    let (none, broken) = (Err(K::LeaseNotPresent), Err(K::LeaseBroken));
    let other = held(at(90), TERM, b);
    let changed = Ok(other);
    assert_eq!(row(|l| l.change(at(100), a, b)), [none, changed, broken, none, none]);
    assert_eq!(other.change(at(101), a, b), changed, "repeating it is accepted");
    let c = LeaseId::random(&crate::runtime::Runtime::new());
    assert_eq!(states()[1].change(at(100), c, b), Err(K::LeaseIdMismatch));
}

#[test]
fn release() {
    let (a, b) = ids();
    let (free, none, other) = (Ok(BlobLease::Available), Err(K::LeaseNotPresent), Err(K::LeaseIdMismatch));
    assert_eq!(row(|l| l.release(a)), [none, free, free, free, free]);
    assert_eq!(row(|l| l.release(b)), [none, other, other, other, other]);
}

#[test]
fn break_at_once() {
    let broken = Ok(LeaseState::Broken);
    let state = |l: BlobLease| l.break_within(at(100), Some(Duration::ZERO)).map(|(l, _)| l.state(at(100)));
    assert_eq!(row(state), [Err(K::LeaseNotPresent), broken, broken, broken, broken]);
}

#[test]
fn break_within_a_period() {
    let left = |l: BlobLease, period| l.break_within(at(100), period).unwrap().1;
    let [_, held_a, breaking, broken, expired] = states();
    assert_eq!(left(held_a, Some(SECOND * 7)), SECOND * 7);
    assert_eq!(left(held_a, Some(SECOND * 60)), SECOND * 20, "never longer than the lease");
    assert_eq!(left(held_a, None), SECOND * 20);
    assert_eq!(left(held(at(0), LeaseDuration::Infinite, ids().0), None), Duration::ZERO);
    assert_eq!(left(held(at(0), LeaseDuration::Infinite, ids().0), Some(SECOND)), SECOND);
    assert_eq!(left(breaking, Some(SECOND * 60)), SECOND * 5, "the shorter break wins");
    assert_eq!(left(breaking, Some(SECOND)), SECOND);
    assert_eq!([left(broken, None), left(expired, Some(SECOND))], [Duration::ZERO; 2]);
}

#[test]
fn write() {
    let (a, b) = ids();
    let (none, other, missing) = (Err(K::LeaseNotPresent), Err(K::LeaseIdMismatch), Err(K::LeaseIdMissing));
    let free = Ok(BlobLease::Available);
    let [_, held_a, breaking, ..] = states();
    assert_eq!(row(|l| l.write(at(100), Some(a))), [none, Ok(held_a), Ok(breaking), none, none]);
    assert_eq!(row(|l| l.write(at(100), Some(b))), [none, other, other, none, none]);
    assert_eq!(row(|l| l.write(at(100), None)), [free, missing, missing, free, free]);
}

#[test]
fn after_somebody_wrote_an_expired_lease_cannot_be_renewed() {
    let expired = states()[4];
    let written = expired.write(at(100), None).unwrap();
    assert_eq!(written.renew(at(100), ids().0), Err(K::LeaseNotPresent));
}
