//! The load driver: runs jobqueue on SQLite through the phases of the harness, then measures the cost of many leases.

mod leases;
mod message;
mod subject;

use jobqueue_bench_harness::{Phase, Result, Setting, main_with};

fn main() -> Result<()> {
    main_with::<subject::Jobqueue, _>(own)
}

async fn own(_: Phase, setting: Setting) -> Result<jobqueue_bench_harness::Figures> {
    leases::leases(&setting).await
}
