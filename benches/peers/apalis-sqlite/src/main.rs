//! Runs apalis-sqlite through the phases of the harness, with the event-driven worker of its README.

mod subject;

use jobqueue_bench_harness::Result;

fn main() -> Result<()> {
    jobqueue_bench_harness::main::<subject::Apalis>()
}
