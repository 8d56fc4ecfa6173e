//! One process that stands for leader.

use std::time::Duration;

use jobqueue::leader::{Leader, Leadership};
use jobqueue::shutdown_signal;
use jobqueue_examples::{Failure, open_storage};
use tokio::sync::watch;

use super::Options;

/// Stands for leader until standard input ends.
pub async fn run(number: u32, options: &Options) -> Result<(), Failure> {
    let storage = open_storage(options.storage.as_deref(), "traffic_cop").await?;
    let leader = Leader::new(&storage, "traffic-cop")?.lease(Duration::from_secs(options.lease));
    let stop = until_input_ends();
    let control = |leadership| control(number, leadership, stop.clone());
    tokio::select! {
        // Waits until leadership is released, so that another need not wait for the lease.
        led = leader.run_while_leader(control) => led?,
        () = candidate_is_stopped(&leader, stop.clone()) => {}
    }
    Ok(())
}

/// Being in control: what only one process may do belongs here.
async fn control(number: u32, leadership: Leadership, mut stop: watch::Receiver<bool>) {
    println!("instance {number}: in control (term {})", leadership.term());
    tokio::select! {
        () = leadership.token().cancelled() => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
    println!("instance {number}: lost control");
    // To return would end the candidacy. This is dropped when leadership is over.
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn candidate_is_stopped(leader: &Leader, mut stop: watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
    while leader.has_control() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The process that started this one holds the other end; when it dies, however it does, the end is seen here. Signals are
/// left to it as well: a terminal sends them to both.
fn until_input_ends() -> watch::Receiver<bool> {
    let (tell, stop) = watch::channel(false);
    tokio::spawn(shutdown_signal());
    // Not on the runtime, which would wait for the read when the program ends.
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let _ = tell.send(true);
    });
    stop
}
