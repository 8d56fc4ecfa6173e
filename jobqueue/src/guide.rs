//! The guide: one page per subject. The tests compile and run every example.

#[doc = include_str!("docs/messages.md")]
pub mod messages {}

#[doc = include_str!("docs/changing_messages.md")]
pub mod changing_messages {}

#[doc = include_str!("docs/deploying.md")]
pub mod deploying {}

#[doc = include_str!("docs/handlers.md")]
pub mod handlers {}

#[doc = include_str!("docs/errors_and_retries.md")]
pub mod errors_and_retries {}

#[doc = include_str!("docs/long_jobs.md")]
pub mod long_jobs {}

#[doc = include_str!("docs/dead_letters.md")]
pub mod dead_letters {}

#[doc = include_str!("docs/large_payloads.md")]
pub mod large_payloads {}

#[doc = include_str!("docs/coordination.md")]
pub mod coordination {}

#[doc = include_str!("docs/storages.md")]
pub mod storages {}

#[doc = include_str!("docs/postgres.md")]
pub mod postgres {}

#[doc = include_str!("docs/outbox.md")]
pub mod outbox {}

#[doc = include_str!("docs/running_on_azure.md")]
pub mod running_on_azure {}

#[doc = include_str!("docs/service_bus.md")]
pub mod service_bus {}

#[doc = include_str!("docs/permissions_and_costs.md")]
pub mod permissions_and_costs {}

#[doc = include_str!("docs/other_crates.md")]
pub mod other_crates {}

#[doc = include_str!("docs/operating.md")]
pub mod operating {}

#[doc = include_str!("docs/observing.md")]
#[doc = include_str!("docs/trace.svg")]
pub mod observing {}

#[doc = include_str!("docs/scaling.md")]
pub mod scaling {}

#[doc = include_str!("docs/testing.md")]
pub mod testing {}

#[doc = include_str!("docs/migrating.md")]
pub mod migrating {}

#[doc = include_str!("docs/guarantees.md")]
pub mod guarantees {}
