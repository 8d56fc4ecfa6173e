//! Runs one system alone, for callgrind: `benches/run --azurite` counts its instructions for two numbers of
//! jobs, and the difference is what the jobs cost.

use clap::Args;
use jobqueue_bench_harness::Result;

use crate::load;
use crate::system::Kind;

#[derive(Debug, Args)]
pub(crate) struct CannedArgs {
    #[arg(long, value_enum)]
    system: Kind,
    #[arg(long, default_value_t = 1_000)]
    jobs: u64,
}

pub(crate) async fn run(args: &CannedArgs) -> Result<()> {
    load::in_process(args.system, args.jobs).await
}
