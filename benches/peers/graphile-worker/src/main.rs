//! Runs graphile_worker through the phases of the harness.

mod subject;

use jobqueue_bench_harness::Result;

fn main() -> Result<()> {
    jobqueue_bench_harness::main::<subject::Graphile>()
}
