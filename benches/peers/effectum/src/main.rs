//! effectum through the phases of the harness, at the durability that `BENCH_DURABILITY` names: `full` (the
//! default), `normal`, or `shipped`.

mod durability;
mod subject;

use jobqueue_bench_harness::Result;

fn main() -> Result<()> {
    durability::set()?;
    jobqueue_bench_harness::main::<subject::Effectum>()
}
