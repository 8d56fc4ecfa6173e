//! Whether the write-ahead log has lost committed work to damage.
//!
//! SQLite reads the log up to the first frame whose checksum is wrong and takes the rest for what a crash left unfinished.
//! After a flipped bit, committed transactions would vanish without a word. They can be told from a crash: with
//! `synchronous=FULL` nothing is written after a commit before that commit is synced. So when a whole transaction, and
//! something after it, follow a wrong frame, the wrong frame was once right.
//!
//! The format is described in SQLite's [file format, section 4](https://www.sqlite.org/fileformat2.html#the_write_ahead_log).
//! SQLite keeps no locks on the log itself, so reading it here ends none.

use std::fs;
use std::path::Path;

use rusqlite::Connection;

use crate::sqlite::error::{Cause, from_sql};
use crate::storage::StoreErrorKind;

/// A larger log is not looked through.
const MAX_BYTES: u64 = 256 << 20;

const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;

/// Checks the log at `path` while `connection` keeps others from writing to it.
///
/// # Errors
/// `Corrupt` when committed work was lost.
pub(super) fn check(connection: &Connection, path: &Path) -> Result<(), Cause> {
    let bytes = path.metadata().map_or(0, |metadata| metadata.len());
    if bytes < HEADER as u64 || bytes > MAX_BYTES {
        return Ok(());
    }
    connection.execute_batch("BEGIN IMMEDIATE").map_err(from_sql)?;
    let damaged = fs::read(path).ok().and_then(|log| find_damage(&log));
    connection.execute_batch("ROLLBACK").map_err(from_sql)?;
    match damaged {
        None => Ok(()),
        Some(what) => Err(Cause::new(
            StoreErrorKind::Corrupt,
            format!("the write-ahead log is damaged and has lost committed work: {what}"),
        )),
    }
}

fn find_damage(log: &[u8]) -> Option<String> {
    let header = log.get(..HEADER)?;
    if header.iter().all(|byte| *byte == 0) {
        return None;
    }
    let order = match word(header, 0) {
        0x377f_0682 => u32::from_le_bytes,
        0x377f_0683 => u32::from_be_bytes,
        _ => return Some("its header is no header".to_owned()),
    };
    let sum = checksum(order, [0, 0], &header[..24]);
    if sum != [word(header, 24), word(header, 28)] {
        return Some("its header's checksum is wrong".to_owned());
    }
    let salts = header.get(16..24)?;
    let page = usize::try_from(word(header, 8)).ok().filter(|size| size.is_power_of_two())?;
    let mut before = sum;
    let (mut wrong, mut lost_commit) = (None, false);
    for (number, frame) in log[HEADER..].chunks_exact(FRAME_HEADER + page).enumerate() {
        let stored = [word(frame, 16), word(frame, 20)];
        let ours = &frame[8..16] == salts;
        let sum = checksum(order, checksum(order, before, &frame[..8]), &frame[FRAME_HEADER..]);
        let right = ours && sum == stored;
        if !right && wrong.is_none() {
            wrong = Some(number);
        }
        if lost_commit && right {
            return wrong.map(|number| format!("frame {number} is wrong, and transactions follow it"));
        }
        // A commit behind the wrong frame: right by itself, or itself the wrong one.
        lost_commit |= wrong.is_some() && ours && word(frame, 4) != 0;
        before = stored;
    }
    None
}

/// SQLite's checksum over words in the order the log's header names, beginning at `sum`.
fn checksum(order: fn([u8; 4]) -> u32, sum: [u32; 2], data: &[u8]) -> [u32; 2] {
    let (pairs, _) = data.as_chunks::<8>();
    pairs.iter().fold(sum, |[a, b], pair| {
        let [p, q, r, s, t, u, v, w] = *pair;
        let a = a.wrapping_add(order([p, q, r, s])).wrapping_add(b);
        let b = b.wrapping_add(order([t, u, v, w])).wrapping_add(a);
        [a, b]
    })
}

/// The big-endian word at `at`; zero beyond the end.
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_be_bytes)
}
