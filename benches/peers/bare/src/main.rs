//! The limit: a loop with group commit on SQLite that does nothing else. One writer thread takes the waiting
//! operations, executes them in one transaction, and answers after COMMIT with `synchronous=FULL`.

mod store;
mod subject;

use jobqueue_bench_harness::Result;

fn main() -> Result<()> {
    jobqueue_bench_harness::main::<subject::Bare>()
}
