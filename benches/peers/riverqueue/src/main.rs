//! Runs River's Rust port on SQLite or PostgreSQL through the phases of the harness.

mod subject;

use jobqueue_bench_harness::Result;

fn main() -> Result<()> {
    jobqueue_bench_harness::main::<subject::River>()
}
