//! The limit: a loop on PostgreSQL that does nothing else. Messages are put, claimed with `SKIP LOCKED` for
//! 30 seconds, and deleted; what is requested at about the same time shares a statement, and each answer
//! comes after the commit.

mod lane;
mod store;
mod subject;

use jobqueue_bench_harness::Result;

fn main() -> Result<()> {
    jobqueue_bench_harness::main::<subject::Bare>()
}
