//! Effects in the SQLite file, each in the transaction that completes its job.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use jobqueue::Context;
use jobqueue::job::BoxError;
use rusqlite::{Connection, TransactionBehavior};

use super::history::{History, Job};
use super::jobs::Todo;
use super::process::Process;

/// Writes an effect, and completes the job in the same transaction.
pub fn commit(ctx: &Context, process: &Process) -> Result<(), BoxError> {
    tokio::task::block_in_place(|| {
        let mut connection = Connection::open(process.folder.join("jobs.db"))?;
        connection.busy_timeout(Duration::from_secs(5))?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch("CREATE TABLE IF NOT EXISTS effect (job TEXT, is_first INTEGER)")?;
        let is_first = ctx.once_in_sqlite(&transaction, "effect")?;
        let job = &*ctx.info().id;
        transaction.execute("INSERT INTO effect VALUES (?1, ?2)", (job, is_first))?;
        ctx.complete_in_sqlite(&transaction)?;
        // A process that dies behind the commit writes nothing more.
        process.ledger.note("end", 0, job);
        Ok(transaction.commit()?)
    })
}

/// Returns the jobs with too many effects, or none. A job of which one message was certainly stored has one;
/// of several messages one is the first.
pub fn audit(folder: &Path, history: &History) -> Vec<String> {
    let connection = Connection::open(folder.join("jobs.db")).unwrap();
    let mut read =
        connection.prepare("SELECT job, count(*), sum(is_first) FROM effect GROUP BY job").unwrap();
    let effects = read.query_map([], |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?)))).unwrap();
    let effects: BTreeMap<String, (u32, u32)> = effects.collect::<Result<_, _>>().unwrap();
    println!("{} jobs completed in transactions", effects.len());
    let is_known = |job: &Job| job.sent.is_some() || job.first_end().is_some();
    let jobs = history.jobs.iter().filter(|(id, job)| Todo::of(id) == Todo::Commit && is_known(job));
    let wrong = jobs.filter_map(|(id, job)| {
        let (all, first) = effects.get(id).copied().unwrap_or_default();
        let may_be_many = job.doubts > 0 || job.sent.is_none();
        let is_fine = first == 1 && (all == 1 || may_be_many);
        (!is_fine).then(|| format!("{all} effects, {first} of them the first: {id}"))
    });
    wrong.collect()
}
