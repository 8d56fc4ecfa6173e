//! Checks every cell of the table: rows are actions, columns are states.

use super::*;
use StoreErrorKind as K;

const START: u64 = 1_767_225_600;
const TERM: Duration = Duration::from_secs(30);

fn at(second: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(START + second)
}

fn ids() -> (LeaseId, LeaseId) {
    let parse = |text| LeaseId::parse(text).unwrap();
    (parse("aaaaaaaa-0000-4000-8000-000000000000"), parse("bbbbbbbb-0000-4000-8000-000000000000"))
}

fn held(since: u64, id: LeaseId) -> BlobLease {
    BlobLease::Held { id, duration: TERM, until: at(since) + TERM }
}

/// Returns the states at second 100: available, held by A, and held by A but expired.
fn states() -> [BlobLease; 3] {
    let (a, _) = ids();
    [BlobLease::Available, held(90, a), held(60, a)]
}

fn row<T>(action: impl Fn(BlobLease) -> Result<T, K>) -> [Result<T, K>; 3] {
    states().map(action)
}

#[test]
fn lease_is_active_until_its_time_is_over() {
    assert_eq!(states().map(|lease| lease.is_active(at(100))), [false, true, false]);
    assert!(states()[1].is_active(at(119)));
    assert!(!states()[1].is_active(at(120)));
}

#[test]
fn acquire() {
    let (a, b) = ids();
    let taken = |id| Ok(held(100, id));
    assert_eq!(row(|l| l.acquire(at(100), TERM, a)), [taken(a), taken(a), taken(a)]);
    assert_eq!(row(|l| l.acquire(at(100), TERM, b)), [taken(b), Err(K::LeaseAlreadyPresent), taken(b)]);
}

#[test]
fn renew() {
    let (a, b) = ids();
    let renewed = Ok(held(100, a));
    let (none, other) = (Err(K::LeaseNotPresent), Err(K::LeaseIdMismatch));
    assert_eq!(row(|l| l.renew(at(100), a)), [none, renewed, renewed]);
    assert_eq!(row(|l| l.renew(at(100), b)), [none, other, other]);
}

#[test]
fn release() {
    let (a, b) = ids();
    let (free, none, other) = (Ok(BlobLease::Available), Err(K::LeaseNotPresent), Err(K::LeaseIdMismatch));
    assert_eq!(row(|l| l.release(a)), [none, free, free]);
    assert_eq!(row(|l| l.release(b)), [none, other, other]);
}

#[test]
fn write() {
    let (a, b) = ids();
    let (none, other, missing) = (Err(K::LeaseNotPresent), Err(K::LeaseIdMismatch), Err(K::LeaseIdMissing));
    let free = Ok(BlobLease::Available);
    assert_eq!(row(|l| l.write(at(100), Some(a))), [none, Ok(states()[1]), none]);
    assert_eq!(row(|l| l.write(at(100), Some(b))), [none, other, none]);
    assert_eq!(row(|l| l.write(at(100), None)), [free, missing, free]);
}

#[test]
fn after_a_write_an_expired_lease_cannot_be_renewed() {
    let expired = states()[2];
    let written = expired.write(at(100), None).unwrap();
    assert_eq!(written.renew(at(100), ids().0), Err(K::LeaseNotPresent));
}
