//! Checks the write-ahead log that an earlier process has left: whether damage has lost committed work, and
//! whether its content is on the disk.
//!
//! SQLite reads the log up to the first frame with a wrong checksum, and takes the rest for the remains of a
//! crash. After a flipped bit, committed transactions would vanish silently. The two cases differ: with
//! `synchronous=FULL` nothing is written after a commit before that commit is synced. So if the frame after a
//! commit was written as its successor, everything up to that commit was once correct. Remains of crashes
//! beyond the end of the log succeed no frame, since they were written after other frames than the frames
//! before them now.
//!
//! A correct log may be only in the system's memory: a process wrote it and was killed before it synced, or
//! its sync failed, after which the system believes pages written that are not. SQLite would build on these
//! pages, and the next power cut would lose the result. So the log is written again, frame by frame, before
//! it is synced. Remains of a longer log, beyond the last frame that SQLite would read, stay as they are.
//!
//! This needs the write lock. While another process holds it for long, the log is only checked, and the store
//! is opened for reading: the writer [secures](LeftLog::secure) the log before its first write.
//!
//! SQLite's [file format, section 4](https://www.sqlite.org/fileformat2.html#the_write_ahead_log) describes
//! the format. SQLite keeps no locks on the log itself, so opening it here ends none.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use crate::checkpoint::checkpoint;
use crate::error::{Cause, from_sql};
use jobqueue_storage::StoreErrorKind;

/// The maximum size of a log that is checked, in bytes.
const MAX_CHECKED_BYTES: u64 = 256 << 20;

const HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 24;

/// The size of reads and writes of the log, in bytes.
const CHUNK_BYTES: usize = 1 << 20;

/// The log that earlier processes have left beside a file.
pub(crate) struct LeftLog {
    path: PathBuf,
    /// True if the log was written with `synchronous=FULL`, and so can be checked.
    is_full: bool,
    is_secured: bool,
}

impl LeftLog {
    pub(super) fn new(path: PathBuf, is_full: bool) -> Self {
        Self { path, is_full, is_secured: false }
    }

    pub(super) fn is_secured(&self) -> bool {
        self.is_secured
    }

    /// Checks the log and brings it to the disk, unless that is done. `connection` must not wait for locks.
    ///
    /// # Errors
    /// `Timeout` if another process holds the write lock; `Corrupt` if committed work was lost.
    pub(crate) fn secure(&mut self, connection: &Connection) -> Result<(), Cause> {
        if self.is_secured {
            return Ok(());
        }
        if secure(connection, &self.path, self.is_full)? {
            // The checkpoint syncs the log, unless another process is just doing so, and empties it, unless a
            // reader uses it.
            checkpoint(connection, "TRUNCATE")?;
        }
        self.is_secured = true;
        Ok(())
    }

    /// Checks the log while another process may write to it. A frame that is just being written looks
    /// damaged, so only damage that is found repeatedly counts.
    pub(super) fn check_unlocked(&self) -> Result<(), Cause> {
        if !self.is_full || length(&self.path) > MAX_CHECKED_BYTES {
            return Ok(());
        }
        check(&self.path).or_else(|_| check(&self.path)).or_else(|_| check(&self.path))
    }
}

/// Checks the log at `path` if it was written with `synchronous=FULL`, and writes it again, while
/// `connection` keeps other processes from writing to it. Returns true if there is a log, which must then be
/// synced.
///
/// # Errors
/// `Corrupt` if committed work was lost; `Unavailable` or `Full` if the log cannot be written.
fn secure(connection: &Connection, path: &Path, is_full: bool) -> Result<bool, Cause> {
    if length(path) < HEADER_BYTES as u64 {
        return Ok(false);
    }
    connection.execute_batch("BEGIN IMMEDIATE").map_err(from_sql)?;
    let done = secure_locked(path, is_full);
    connection.execute_batch("ROLLBACK").map_err(from_sql)?;
    done
}

fn secure_locked(path: &Path, is_full: bool) -> Result<bool, Cause> {
    // Another process may have emptied the log while this process waited for the lock.
    let bytes = length(path);
    if bytes < HEADER_BYTES as u64 {
        return Ok(false);
    }
    if is_full && bytes <= MAX_CHECKED_BYTES {
        check(path)?;
    }
    write_again(path).map(|_| true).map_err(cannot_write)
}

fn length(path: &Path) -> u64 {
    path.metadata().map_or(0, |metadata| metadata.len())
}

fn check(path: &Path) -> Result<(), Cause> {
    match fs::read(path).ok().and_then(|log| find_damage(&log)) {
        None => Ok(()),
        Some(problem) => Err(Cause::new(
            StoreErrorKind::Corrupt,
            format!(
                "the write-ahead log is damaged and has lost committed work: {problem}. If the store was used with \
                 Synchronous::Normal, a power cut does this, and opening it so once accepts the loss"
            ),
        )),
    }
}

/// Writes again the header and the frames that SQLite would read. Returns their size in bytes.
fn write_again(path: &Path) -> io::Result<usize> {
    let mut log = BufReader::with_capacity(CHUNK_BYTES, File::open(path)?);
    let mut header = [0; HEADER_BYTES];
    log.read_exact(&mut header)?;
    let Ok(Some(mut frames)) = Frames::behind(&header) else { return Ok(0) };
    let mut again = BufWriter::with_capacity(CHUNK_BYTES, OpenOptions::new().write(true).open(path)?);
    again.write_all(&header)?;
    let (mut frame, mut written) = (vec![0; frames.size()], HEADER_BYTES);
    loop {
        match log.read_exact(&mut frame) {
            Ok(()) if frames.accept(&frame) => {}
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
            _ => break,
        }
        again.write_all(&frame)?;
        written += frame.len();
    }
    again.flush()?;
    Ok(written)
}

fn cannot_write(error: io::Error) -> Cause {
    let kind = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreErrorKind::Full,
        _ => StoreErrorKind::Unavailable,
    };
    Cause::new(kind, format!("the write-ahead log cannot be written: {error}"))
}

fn find_damage(log: &[u8]) -> Option<String> {
    let header = log.get(..HEADER_BYTES)?;
    let mut frames = match Frames::behind(header) {
        Ok(frames) => frames?,
        Err(problem) => return Some(problem.to_owned()),
    };
    let (mut wrong, mut after_lost_commit) = (None, false);
    for (number, frame) in log[HEADER_BYTES..].chunks_exact(frames.size()).enumerate() {
        let right = frames.accept(frame);
        if !right && wrong.is_none() {
            wrong = Some(number);
        }
        if after_lost_commit && right {
            return wrong.map(|number| format!("frame {number} is wrong, and transactions follow it"));
        }
        // A commit after the wrong frame: either a correct frame, or the wrong frame itself.
        after_lost_commit = wrong.is_some() && frames.is_ours(frame) && word(frame, 4) != 0;
    }
    None
}

/// The frames of a log, one after the other.
struct Frames {
    order: fn([u8; 4]) -> u32,
    salts: [u8; 8],
    page: usize,
    /// The checksum of the frame before, or of the header.
    before: [u32; 2],
}

impl Frames {
    /// Reads the header of a log. Returns `None` for a header that SQLite takes for empty, and an error with
    /// the reason if the header is wrong.
    fn behind(header: &[u8]) -> Result<Option<Self>, &'static str> {
        if header.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let order = match word(header, 0) {
            0x377f_0682 => u32::from_le_bytes,
            0x377f_0683 => u32::from_be_bytes,
            _ => return Err("its header is not that of a write-ahead log"),
        };
        let before = checksum(order, [0, 0], &header[..24]);
        if before != [word(header, 24), word(header, 28)] {
            return Err("its header's checksum is wrong");
        }
        let page = usize::try_from(word(header, 8)).ok().filter(|size| size.is_power_of_two());
        let salts = header[16..24].try_into().ok();
        Ok(page.zip(salts).map(|(page, salts)| Self { order, salts, page, before }))
    }

    fn size(&self) -> usize {
        FRAME_HEADER_BYTES + self.page
    }

    /// Returns whether the frame was written as the successor of the frame before, and moves on to the next.
    fn accept(&mut self, frame: &[u8]) -> bool {
        let stored = [word(frame, 16), word(frame, 20)];
        let sum = checksum(
            self.order,
            checksum(self.order, self.before, &frame[..8]),
            &frame[FRAME_HEADER_BYTES..],
        );
        self.before = stored;
        self.is_ours(frame) && sum == stored
    }

    fn is_ours(&self, frame: &[u8]) -> bool {
        frame[8..16] == self.salts
    }
}

/// Computes SQLite's checksum over words in the byte order that the log's header names, starting with `sum`.
fn checksum(order: fn([u8; 4]) -> u32, sum: [u32; 2], data: &[u8]) -> [u32; 2] {
    let (pairs, _) = data.as_chunks::<8>();
    pairs.iter().fold(sum, |[a, b], pair| {
        let [p, q, r, s, t, u, v, w] = *pair;
        let a = a.wrapping_add(order([p, q, r, s])).wrapping_add(b);
        let b = b.wrapping_add(order([t, u, v, w])).wrapping_add(a);
        [a, b]
    })
}

/// Returns the big-endian word at `at`; zero beyond the end.
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    const PAGE_BYTES: usize = 512;

    /// One writer of a log: the number of frames after which it begins, the content of its frames, of which
    /// the last is a commit, and the frames that a crash keeps.
    type Writer<'a> = (usize, &'a [u8], fn(usize) -> bool);

    /// Returns a log written by successive writers.
    fn written(writers: &[Writer<'_>]) -> Vec<u8> {
        let mut log = [0x377f_0682_u32, 3_007_000, 512, 0, 7, 8].map(u32::to_be_bytes).concat();
        let sum = checksum(u32::from_le_bytes, [0, 0], &log);
        log.extend(sum.map(u32::to_be_bytes).concat());
        for (behind, contents, kept) in writers {
            // Each writer trusts the frames before its first frame, as SQLite does after its recovery.
            let at = |frame: usize| HEADER_BYTES + frame * (FRAME_HEADER_BYTES + PAGE_BYTES);
            let mut sum = match behind {
                0 => sum,
                _ => [16, 20].map(|offset| word(&log, at(behind - 1) + offset)),
            };
            for (number, content) in contents.iter().enumerate() {
                let commit = u32::from(number + 1 == contents.len());
                let mut frame = [9, commit, 7, 8].map(u32::to_be_bytes).concat();
                let page = [*content; PAGE_BYTES];
                sum = checksum(u32::from_le_bytes, checksum(u32::from_le_bytes, sum, &frame[..8]), &page);
                frame.extend(sum.map(u32::to_be_bytes).concat());
                frame.extend(page);
                let from = at(behind + number);
                log.resize(log.len().max(from + frame.len()), 0);
                if kept(number) {
                    log[from..from + frame.len()].copy_from_slice(&frame);
                }
            }
        }
        log
    }

    #[test]
    fn log_tail_left_by_a_crash_is_not_damage() {
        let all = |_| true;
        let but_first = |frame| frame != 0;
        let whole = written(&[(0, b"ab", all), (2, b"c", all), (3, b"de", all)]);
        assert_eq!(find_damage(&whole), None);
        // The last commit is torn.
        assert_eq!(find_damage(&written(&[(0, b"ab", all), (2, b"cdefgh", but_first)])), None);
        // Another, shorter commit in its place is torn too: the end of the first commit is behind it.
        let twice = written(&[(0, b"ab", all), (2, b"cdefgh", but_first), (2, b"ijk", but_first)]);
        assert_eq!(find_damage(&twice), None);
        let whole = written(&[(0, b"ab", all), (2, b"cdefgh", but_first), (2, b"ijk", all)]);
        assert_eq!(find_damage(&whole), None);
    }

    /// A log never shrinks: a reader that took minutes once made it long.
    #[test]
    fn remains_behind_the_end_of_a_log_are_not_written_again() {
        let all = |_| true;
        let log = written(&[(0, b"ab", all), (2, b"cde", all)]);
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut remains = written(&[(0, b"fghij", all)])[HEADER_BYTES..].to_vec();
        remains.iter_mut().for_each(|byte| *byte ^= 1);
        for (before, again) in
            [(log.clone(), log.len()), ([&*log, &remains].concat(), log.len()), (vec![0; 5_000], 0)]
        {
            fs::write(file.path(), &before).unwrap();
            assert_eq!(write_again(file.path()).unwrap(), again);
            assert_eq!(fs::read(file.path()).unwrap(), before);
        }
    }

    thread_local! {
        static HOLDER: RefCell<Option<Connection>> = const { RefCell::new(None) };
    }

    /// Several processes start at once and find the same log; the first of them empties it.
    #[test]
    fn log_that_another_process_empties_meanwhile_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("jobs.db");
        let holder = Connection::open(&file).unwrap();
        holder.pragma_update(None, "journal_mode", "WAL").unwrap();
        let mut opener = Connection::open(&file).unwrap();
        opener.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(())).unwrap();
        holder.execute_batch("CREATE TABLE t (x); BEGIN IMMEDIATE").unwrap();
        let log = folder.path().join("jobs.db-wal");
        assert!(length(&log) > 0);
        HOLDER.set(Some(holder));
        let empty_log = |_| {
            let ends = "ROLLBACK; PRAGMA wal_checkpoint(TRUNCATE)";
            HOLDER.take().is_some_and(|holder| holder.execute_batch(ends).is_ok())
        };
        opener.busy_handler(Some(empty_log)).unwrap();
        assert!(matches!(secure(&opener, &log, true), Ok(false)));
        assert_eq!(length(&log), 0);
    }

    /// An operator's shell may keep a transaction open for minutes; the log is then left to the first write.
    #[test]
    fn log_is_secured_once_no_other_process_writes() {
        let folder = tempfile::tempdir().unwrap();
        let options = crate::options::Options::new(folder.path().join("jobs.db"));
        let holder = crate::open::writer(&options).map_err(|cause| cause.error("open", "")).unwrap();
        holder.connection.execute_batch("CREATE TABLE t (x); BEGIN IMMEDIATE").unwrap();
        let log = crate::open::log_of(&holder.file);
        let mut opened = crate::open::writer(&options).map_err(|cause| cause.error("open", "")).unwrap();
        assert_eq!(
            opened.left_log.secure(&opened.connection).unwrap_err().error("put", "").kind(),
            StoreErrorKind::Timeout
        );
        assert!(length(&log) > 0);
        holder.connection.execute_batch("ROLLBACK").unwrap();
        assert!(opened.left_log.secure(&opened.connection).is_ok());
        assert_eq!(length(&log), 0, "the log is synced and copied into the file");
    }

    #[test]
    fn flipped_bit_before_a_later_commit_is_damage() {
        let all = |_| true;
        let log = written(&[(0, b"ab", all), (2, b"c", all), (3, b"de", all)]);
        let frame = |number: usize| HEADER_BYTES + number * (FRAME_HEADER_BYTES + PAGE_BYTES);
        for at in [frame(0) + 100, frame(1) + 3, frame(1) + 18, frame(2) + 500] {
            let mut damaged = log.clone();
            damaged[at] ^= 1;
            assert!(find_damage(&damaged).is_some(), "byte {at}");
        }
        // No later frame distinguishes this from a crash.
        let mut damaged = log.clone();
        damaged[frame(3) + 100] ^= 1;
        assert_eq!(find_damage(&damaged), None);
    }
}
