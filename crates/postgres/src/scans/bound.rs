//! The time at which a scan for visible messages begins.
//!
//! A message that was received or deleted leaves its old version in the index until PostgreSQL removes it,
//! which is impossible while any transaction may still see it. Each scan from the beginning would pass all
//! old versions. So each process remembers the time up to which it has received everything, and begins there.
//! Messages that are committed late may have earlier times. They are bounded as follows:
//!
//! - A writer sets the time at which a message becomes visible to the current time or later, after its
//!   transaction has got a number (the function `writing`). Numbers are assigned in increasing order. So a
//!   transaction with a greater number than a scan writes no message that is visible before this scan.
//! - Of the smaller numbers, a scan knows which transactions had not ended: its snapshot lists them up to a
//!   limit, and all from the limit to the number of the scan are assumed to be running. Each is remembered
//!   with the earliest possible time of its messages: the time of the last scan with a smaller number. Once
//!   one of them has ended, the next scan begins at its earliest time.
//! - The number of a scan is that of its transaction, or the next number that the server will assign, because
//!   a scan that finds nothing uses up no number.
//!
//! A process makes a scan from the beginning from time to time, which finds the messages that this does not
//! cover: messages that another process had locked but did not receive because its transaction was rolled
//! back, and messages with times of a clock that was set back.

use std::collections::BTreeMap;
use std::time::Duration;

/// The maximum number of unlisted transactions that are remembered after a scan. A transaction with many
/// savepoints uses up many numbers.
const MAX_UNLISTED: u64 = 1_000;

/// The state after a scan. `default()` is the state before the first scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bound {
    /// All messages that were visible before this time have been received or are locked, except the messages
    /// of `running`.
    pub(crate) from: i64,
    /// The time at which the scan began.
    time: i64,
    /// The time at which the last scan with a usable number began.
    numbered: i64,
    /// The transactions that had not ended, each with the earliest possible time of its messages.
    running: BTreeMap<u64, i64>,
}

impl Default for Bound {
    fn default() -> Self {
        Self { from: i64::MIN, time: i64::MIN, numbered: i64::MIN, running: BTreeMap::new() }
    }
}

/// A finished scan.
#[derive(Debug, Clone)]
pub(crate) struct Scan {
    /// The time at which it began, before it got its number and before it took its snapshot.
    pub(crate) time: i64,
    /// The time of the last message, if the scan stopped there because it had found enough messages.
    pub(crate) stopped_at: Option<i64>,
    /// The number of its transaction, or a number that the server had not assigned when the scan began.
    pub(crate) number: u64,
    /// The transactions below `limit` that had not ended.
    pub(crate) running: Vec<u64>,
    /// The number from which on no transaction had ended.
    pub(crate) limit: u64,
    /// The time that the server took for it, without the wait for its commit.
    pub(crate) duration: Duration,
}

impl Bound {
    /// Returns a state that begins at `from` and knows nothing else.
    pub(crate) fn beginning_at(from: i64) -> Self {
        Self { from, numbered: from, ..Self::default() }
    }

    /// Returns the state for a scan from the beginning. It keeps the known transactions.
    pub(crate) fn restarted(&self) -> Self {
        Self { from: i64::MIN, ..self.clone() }
    }

    /// Returns the state without the known transactions: their late commits are left to a scan from the
    /// beginning.
    pub(crate) fn without_late(&self) -> Self {
        Self { running: BTreeMap::new(), ..self.clone() }
    }

    /// Returns whether no scan has ended yet.
    pub(crate) fn is_unknown(&self) -> bool {
        self.time == i64::MIN
    }

    /// Returns the numbers of the transactions that had not ended, and the earliest possible times of their
    /// messages.
    pub(crate) fn running(&self) -> (Vec<i64>, Vec<i64>) {
        self.running.iter().map(|(number, since)| (number.cast_signed(), *since)).unzip()
    }

    /// Returns the state after a scan that began at this state's time.
    pub(crate) fn after(&self, scan: &Scan) -> Self {
        if scan.time < self.time {
            // The clock was set back, or another server has answered.
            return Self::default();
        }
        let place = scan.stopped_at.unwrap_or(scan.time);
        let has_ended = |number: u64| number < scan.limit && scan.running.binary_search(&number).is_err();
        let mut running = self.running.clone();
        running.retain(|number, _| !has_ended(*number));
        let number = Some(scan.number).filter(|number| number.saturating_sub(scan.limit) <= MAX_UNLISTED);
        let unlisted = number.map_or(scan.limit..scan.limit, |number| scan.limit..number);
        for number in scan.running.iter().copied().chain(unlisted) {
            running.entry(number).or_insert(self.numbered);
        }
        match number {
            Some(_) => Self { from: place, time: scan.time, numbered: scan.time, running },
            None => {
                Self { from: place.min(self.numbered), time: scan.time, numbered: self.numbered, running }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(time: i64, number: u64, running: &[u64]) -> Scan {
        let (running, duration) = (running.to_vec(), Duration::ZERO);
        Scan { time, stopped_at: None, number, running, limit: number, duration }
    }

    #[test]
    fn scan_that_found_all_is_not_repeated() {
        let bound = Bound::default().after(&scan(100, 10, &[])).after(&scan(200, 11, &[]));
        assert_eq!(bound.from, 200);
        assert_eq!(bound.running(), (vec![], vec![]));
    }

    #[test]
    fn scan_that_had_enough_goes_on_at_its_last_message() {
        let bound = Bound::default().after(&Scan { stopped_at: Some(70), ..scan(100, 10, &[]) });
        assert_eq!(bound.from, 70);
    }

    #[test]
    fn transaction_keeps_the_earliest_time_of_its_messages() {
        let bound = Bound::default().after(&scan(100, 10, &[7]));
        assert_eq!(bound.running(), (vec![7], vec![i64::MIN]), "nothing is known of its beginning");
        let bound = Bound::default().after(&scan(100, 10, &[])).after(&scan(200, 20, &[15]));
        assert_eq!(bound.running(), (vec![15], vec![100]), "it has a number since the former scan");
        let bound = bound.after(&scan(300, 30, &[15, 25]));
        assert_eq!(bound.running(), (vec![15, 25], vec![100, 200]));
        let bound = bound.after(&scan(400, 40, &[25]));
        assert_eq!(bound.from, 400);
        assert_eq!(bound.running(), (vec![25], vec![200]));
    }

    /// A snapshot lists no transaction after the last transaction that has ended.
    #[test]
    fn unlisted_transactions_are_taken_for_running() {
        let bound =
            Bound::default().after(&scan(100, 10, &[])).after(&Scan { limit: 18, ..scan(200, 20, &[]) });
        assert_eq!(bound.running(), (vec![18, 19], vec![100, 100]));
        let bound = bound.after(&Scan { limit: 19, ..scan(300, 30, &[]) });
        assert_eq!(bound.running().0[0], 19, "18 has ended, and of 19 nothing is known");
        assert_eq!(bound.running().1[..2], [100, 200]);
    }

    #[test]
    fn flood_of_numbers_counts_as_none() {
        let bound = Bound::default().after(&scan(100, 10, &[]));
        let bound = bound.after(&Scan { limit: 15, ..scan(200, 1_000_000, &[12]) });
        assert_eq!(bound.from, 100);
        assert_eq!(bound.running(), (vec![12], vec![100]));
        let bound = bound.after(&scan(300, 1_000_001, &[]));
        assert_eq!(bound.from, 300);
        assert_eq!(bound.running(), (vec![], vec![]));
    }

    /// Otherwise the end of each transaction that runs during the scan would cause another scan from the
    /// beginning.
    #[test]
    fn scan_from_the_beginning_keeps_what_is_known_of_transactions() {
        let bound = Bound::default().after(&scan(100, 10, &[])).after(&scan(200, 20, &[15]));
        let bound = bound.restarted();
        assert_eq!(bound.from, i64::MIN);
        let bound = bound.after(&scan(300, 30, &[15, 25]));
        assert_eq!(bound.from, 300);
        assert_eq!(bound.running(), (vec![15, 25], vec![100, 200]));
    }

    #[test]
    fn clock_that_was_set_back_begins_anew() {
        let bound = Bound::default().after(&scan(100, 10, &[7]));
        assert_eq!(bound.after(&scan(99, 11, &[])), Bound::default());
    }
}
