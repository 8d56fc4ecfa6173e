//! The load driver: runs jobqueue on SQLite through the phases of the harness, then measures the cost of many leases, and keys in order.
//! With the feature `postgres` it runs in the PostgreSQL database that `BENCH_POSTGRES` names, if the variable is set.

mod leases;
mod message;
mod order;
mod subject;

use jobqueue_bench_harness::{Phase, Result, Setting, main_with};

fn main() -> Result<()> {
    main_with::<subject::Jobqueue, _>(run_own_phase)
}

async fn run_own_phase(phase: Phase, setting: Setting) -> Result<jobqueue_bench_harness::Figures> {
    match phase {
        Phase::Order => order::order(&setting).await,
        _ => leases::leases(&setting).await,
    }
}
