//! A shop to play with: a web service, a worker and the dashboard in one process.
//!
//! ```text
//! browser ──order──► web service ──pay──► payments ──ship──► parcels (a batch: one job an article) ──► a mail
//!                                        │ fails sometimes                       nightly report (a schedule)
//!                                        └── card refused: dead letter
//! ```
//!
//! Shows all parts together: handlers with progress, retries, dead letters, a batch, a schedule, a history of
//! ended jobs, and the dashboard nested under a path of an application. Open both addresses, order something,
//! and watch it: one card in eight is refused and becomes a dead letter, which the dashboard puts back. The
//! dashboard has `/jobs/metrics` and `/jobs/scale` too, and `/live` and `/ready` say how the worker is.
//! Prints
//!
//! ```text
//! shop:      http://127.0.0.1:8080/
//! dashboard: http://127.0.0.1:8080/jobs/
//! ```
//!
//! On `sqlite:target/shop.db`, or on the storage that `JOBQUEUE_STORAGE` names. Run it with
//! `--features dashboard`.

#![allow(clippy::print_stdout, reason = "a program for people to look at")]

mod jobs;
mod web;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use axum::Router;
use clap::Parser;
use jobqueue::{Storage, Worker, shutdown_signal};
use jobqueue_admin::{AccessLevel, Admin};
use jobqueue_dashboard::{Dashboard, health};
use jobqueue_examples::{Failure, end, open_storage, start};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// A shop with jobs in the background.
#[derive(Debug, Parser)]
struct Options {
    /// The address of the shop and its dashboard; everybody who reaches it may do everything
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Sends an order every so many milliseconds, so that there is something to see; 0 sends none
    #[arg(long, default_value_t = 2_000)]
    customers: u64,
    /// The most time that a step of the work takes, in milliseconds
    #[arg(long, default_value_t = 1_500)]
    pace: u64,
    /// The percentage of cards that are refused
    #[arg(long, default_value_t = 12)]
    refused: u32,
    /// The percentage of payments for which the bank does not answer and is asked again
    #[arg(long, default_value_t = 25)]
    outages: u32,
}

#[tokio::main]
async fn main() -> ExitCode {
    end(run(start()).await)
}

async fn run(options: Options) -> Result<(), Failure> {
    let storage = open_storage(None, "shop").await?;
    let stop = CancellationToken::new();
    let world = jobs::World { pace: options.pace, refused: options.refused, outages: options.outages };
    let worker = worker(&storage, world)?;
    let checks = health::router([worker.health()]);
    let (stopped, ends) = (stop.clone(), stop.clone().drop_guard());
    let worker = tokio::spawn(async move {
        // No orders are taken without a worker.
        let _ends = ends;
        worker.run_until(stopped.cancelled_owned()).await
    });
    let customers = tokio::spawn(web::customers(storage.clone(), options.customers, stop.clone()));

    let listener = TcpListener::bind(options.listen).await?;
    let address = listener.local_addr()?;
    println!("shop:      http://{address}/\ndashboard: http://{address}/jobs/");
    let service = web::shop(&storage).await?.merge(checks).nest_service("/jobs", dashboard(storage, &stop));
    let signalled = stop.clone();
    let server = axum::serve(listener, service).with_graceful_shutdown(async move {
        tokio::select! {
            () = shutdown_signal() => signalled.cancel(),
            () = signalled.cancelled() => {}
        }
    });
    server.await?;
    let _ = worker.await??;
    customers.await??;
    Ok(())
}

fn dashboard(storage: Storage, stop: &CancellationToken) -> Router {
    // A real shop has users: `Dashboard::access` asks who sends a request, and what they may do.
    let admin = Admin::builder(storage).access(AccessLevel::Operate).operator("shopkeeper");
    // The form that sends a job refuses a payment that the worker would refuse.
    let admin = admin.check_payloads_of::<jobs::Payment>().build();
    let dashboard = Dashboard::new(admin).refresh(Duration::from_secs(1)).stop_when(stop.clone());
    // It listens on this machine only, and has no password.
    dashboard.local_only(true).router()
}

fn worker(storage: &Storage, world: jobs::World) -> Result<Worker, Failure> {
    let worker = Worker::builder(storage.clone())
        .name("shop")
        .state(world)
        .presence(Duration::from_secs(2))
        .history(Duration::from_secs(86_400))
        .settings_refresh(Duration::from_secs(2))
        .handle(jobs::pay)
        .handle(jobs::ship)
        .handle(jobs::pack)
        .handle(jobs::thank)
        .handle(jobs::report)
        .schedule("0 3 * * *", "Europe/Berlin", || jobs::Report {});
    Ok(worker.build()?)
}
