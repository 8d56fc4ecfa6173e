//! The limit: what a loop with group commit on SQLite does when it does nothing else. One writer thread takes what
//! waits, does it in one transaction, and answers after COMMIT with `synchronous=FULL`.

mod store;
mod subject;

use jobqueue_bench_harness::Result;

fn main() -> Result<()> {
    jobqueue_bench_harness::main::<subject::Bare>()
}
