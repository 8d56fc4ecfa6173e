//! The load driver. Runs jobqueue on SQLite through the phases of the harness, then measures the cost of many
//! leases, and of jobs in order. With the feature `postgres`, uses the PostgreSQL database that the
//! environment variable `BENCH_POSTGRES` names, if it is set.

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
