//! Measures jobqueue on Azurite next to a bare loop on the official SDK, and next to Celery.
//!
//! Azurite is one Node process and the bottleneck of every measurement: requests are counted exactly, but
//! times are good for ratios only. The cost of the clients themselves is measured with answers from this
//! process.

mod celery;
mod command;
mod framework;
mod idle;
mod instructions;
mod job;
mod load;
mod proxy;
mod sdk;
mod sign;
mod system;

fn main() -> jobqueue_bench_harness::Result<()> {
    command::main()
}
