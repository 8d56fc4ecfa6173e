//! The application's own data: the subscribers, the mailings and their states.
//!
//! It knows SQL and no jobs. Several processes may use the file at once.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rusqlite::{Connection, ErrorCode, OptionalExtension, Transaction, TransactionBehavior, params};
use tokio::task::spawn_blocking;
use uuid::Uuid;

use crate::letter::Letter;

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS subscribers (
        address   TEXT PRIMARY KEY,
        confirmed INTEGER NOT NULL
    );
    CREATE TABLE IF NOT EXISTS mailings (
        id      TEXT PRIMARY KEY,
        subject TEXT NOT NULL,
        body    TEXT NOT NULL,
        due     INTEGER NOT NULL,
        status  TEXT NOT NULL CHECK (status IN ('Pending', 'Queuing', 'Processing'))
    );
    CREATE TABLE IF NOT EXISTS recipients (
        mailing TEXT NOT NULL,
        number  INTEGER NOT NULL,
        address TEXT NOT NULL,
        PRIMARY KEY (mailing, number)
    ) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS archive (
        id      TEXT PRIMARY KEY,
        subject TEXT NOT NULL,
        due     INTEGER NOT NULL,
        status  TEXT NOT NULL CHECK (status = 'Complete'),
        sent    INTEGER NOT NULL,
        failed  INTEGER NOT NULL
    );";

/// The time to wait for another process that writes.
const BUSY: Duration = Duration::from_secs(20);
/// The pause between two attempts to open the file.
const PAUSE: Duration = Duration::from_millis(10);

/// The only list.
const LIST: (&str, &str) = ("The Queue Gazette", "gazette@example.org");

#[derive(Debug, thiserror::Error)]
pub(crate) enum DatabaseError {
    #[error("the database of lists {0} cannot be used")]
    Open(PathBuf, #[source] rusqlite::Error),
    #[error(transparent)]
    Sql(#[from] rusqlite::Error),
    #[error("a task was cut off")]
    Task(#[from] tokio::task::JoinError),
    #[error("mailing {0} has no recipient {1} in this database")]
    NoRecipient(Uuid, u32),
}

pub(crate) struct Subscriber {
    pub(crate) address: String,
    /// True if the owner of the address has confirmed. Others get no mails.
    pub(crate) confirmed: bool,
}

pub(crate) struct NewMailing {
    pub(crate) subject: String,
    pub(crate) body: String,
    pub(crate) due: SystemTime,
}

/// A fan-out that may run.
pub(crate) struct Begun {
    pub(crate) subject: String,
    pub(crate) recipients: u32,
    /// True if it had begun before.
    pub(crate) again: bool,
}

/// The database. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Database {
    connection: Arc<Mutex<Connection>>,
}

impl Database {
    /// Opens the file, or creates it.
    pub(crate) async fn open(file: PathBuf) -> Result<Self, DatabaseError> {
        spawn_blocking(move || {
            let open = || {
                let connection = Connection::open(&file)?;
                connection.busy_timeout(BUSY)?;
                connection.pragma_update(None, "journal_mode", "WAL")?;
                connection.execute_batch(SCHEMA)?;
                Ok(connection)
            };
            let began = Instant::now();
            let connection = loop {
                match open() {
                    // When several processes open a new file at once, SQLite lets them wait for each other
                    // only after the log exists.
                    Err(e) if is_busy(&e) && began.elapsed() < BUSY => std::thread::sleep(PAUSE),
                    opened => break opened.map_err(|e| DatabaseError::Open(file.clone(), e))?,
                }
            };
            Ok(Self { connection: Arc::new(Mutex::new(connection)) })
        })
        .await?
    }

    /// Runs `work` in one transaction, off the async runtime.
    async fn transaction<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> Result<T, DatabaseError> {
        let connection = Arc::clone(&self.connection);
        spawn_blocking(move || {
            let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let done = work(&transaction)?;
            transaction.commit()?;
            Ok(done)
        })
        .await?
    }

    /// Replaces the subscribers by these.
    pub(crate) async fn set_subscribers(&self, subscribers: Vec<Subscriber>) -> Result<(), DatabaseError> {
        self.transaction(move |sql| {
            sql.execute("DELETE FROM subscribers", [])?;
            let mut insert = sql.prepare("INSERT OR REPLACE INTO subscribers VALUES (?1, ?2)")?;
            for one in &subscribers {
                insert.execute(params![one.address, one.confirmed])?;
            }
            Ok(())
        })
        .await
    }

    pub(crate) async fn add(&self, new: NewMailing) -> Result<(), DatabaseError> {
        self.transaction(move |sql| {
            let id = Uuid::now_v7().to_string();
            let insert = "INSERT INTO mailings VALUES (?1, ?2, ?3, ?4, 'Pending')";
            sql.execute(insert, params![id, new.subject, new.body, seconds(new.due)]).map(drop)
        })
        .await
    }

    /// Returns the mailings whose fan-out must begin or has not ended.
    pub(crate) async fn due(&self, now: SystemTime) -> Result<Vec<Uuid>, DatabaseError> {
        let due = "SELECT id FROM mailings WHERE due <= ?1 AND status IN ('Pending', 'Queuing') ORDER BY due";
        self.transaction(move |sql| {
            sql.prepare(due)?.query_map([seconds(now)], |row| row.get(0).map(id))?.collect()
        })
        .await
    }

    /// Returns all mailings that are not archived.
    pub(crate) async fn unfinished(&self) -> Result<Vec<Uuid>, DatabaseError> {
        self.transaction(|sql| {
            sql.prepare("SELECT id FROM mailings")?.query_map([], |row| row.get(0).map(id))?.collect()
        })
        .await
    }

    /// Returns the number of mails of the unfinished mailings.
    pub(crate) async fn expected(&self) -> Result<u32, DatabaseError> {
        let expected = "SELECT coalesce(sum(CASE status
                WHEN 'Pending' THEN (SELECT count(*) FROM subscribers WHERE confirmed)
                ELSE (SELECT count(*) FROM recipients WHERE mailing = mailings.id) END), 0) FROM mailings";
        self.transaction(|sql| sql.query_row(expected, [], |row| row.get(0))).await
    }

    /// Begins a fan-out: Pending → Queuing. The same transaction records the recipients, so that every start
    /// of the fan-out sends to the same ones in the same order, even if people subscribe or leave in the
    /// meantime. `None` if the mailing is archived.
    pub(crate) async fn begin(&self, mailing: Uuid) -> Result<Option<Begun>, DatabaseError> {
        self.transaction(move |sql| {
            let mailing = mailing.to_string();
            let set = "UPDATE mailings SET status = 'Queuing' WHERE id = ?1 AND status = 'Pending'";
            let begun = sql.execute(set, [&mailing])? == 1;
            if begun {
                sql.execute(
                    "INSERT INTO recipients
                     SELECT ?1, row_number() OVER (ORDER BY address) - 1, address FROM subscribers WHERE confirmed",
                    [&mailing],
                )?;
            }
            let found = "SELECT subject, (SELECT count(*) FROM recipients WHERE mailing = ?1) FROM mailings WHERE id = ?1";
            let read = |row: &rusqlite::Row<'_>| {
                Ok(Begun { subject: row.get(0)?, recipients: row.get(1)?, again: !begun })
            };
            sql.query_row(found, [&mailing], read).optional()
        })
        .await
    }

    /// Queuing → Processing. Returns whether this call did it.
    pub(crate) async fn all_queued(&self, mailing: Uuid) -> Result<bool, DatabaseError> {
        let set = "UPDATE mailings SET status = 'Processing' WHERE id = ?1 AND status = 'Queuing'";
        self.transaction(move |sql| Ok(sql.execute(set, [mailing.to_string()])? == 1)).await
    }

    /// Returns the letter to one recipient.
    pub(crate) async fn letter(&self, mailing: Uuid, recipient: u32) -> Result<Letter, DatabaseError> {
        let read = "SELECT address, subject, body, due FROM recipients JOIN mailings ON mailings.id = mailing
                    WHERE mailing = ?1 AND number = ?2";
        let found = self.transaction(move |sql| {
            let mut statement = sql.prepare_cached(read)?;
            let row = statement.query_row(params![mailing.to_string(), recipient], |row| {
                let (list, from) = (LIST.0.to_owned(), LIST.1.to_owned());
                let (to, subject, body) = (row.get(0)?, row.get(1)?, row.get(2)?);
                Ok(Letter { mailing, recipient, list, from, to, subject, body, date: row.get(3)? })
            });
            row.optional()
        });
        found.await?.ok_or(DatabaseError::NoRecipient(mailing, recipient))
    }

    /// Processing → Complete: archives the mailing. Returns the subject if this call did it.
    pub(crate) async fn archive(
        &self,
        mailing: Uuid,
        sent: u32,
        failed: u32,
    ) -> Result<Option<String>, DatabaseError> {
        self.transaction(move |sql| {
            let mailing = mailing.to_string();
            sql.execute(
                "INSERT INTO archive SELECT id, subject, due, 'Complete', ?2, ?3 FROM mailings WHERE id = ?1",
                params![mailing, sent, failed],
            )?;
            let delete = "DELETE FROM mailings WHERE id = ?1 RETURNING subject";
            sql.query_row(delete, [mailing], |row| row.get(0)).optional()
        })
        .await
    }
}

/// Returns a time as it is stored: seconds since 1970.
fn seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// Parses an id. Only this program writes ids.
fn id(text: String) -> Uuid {
    text.parse().unwrap_or_default()
}

fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
}
