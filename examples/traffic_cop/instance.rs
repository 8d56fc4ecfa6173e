//! One process that is a candidate for leader.

use std::time::Duration;

use jobqueue::leader::{Leader, Leadership};
use jobqueue::shutdown_signal;
use jobqueue_examples::{Failure, open_storage};
use tokio::sync::watch;

use super::Options;

/// Is a candidate for leader until standard input ends.
pub(crate) async fn run(number: u32, options: &Options) -> Result<(), Failure> {
    let storage = open_storage(options.storage.as_deref(), "traffic_cop").await?;
    let leader = Leader::new(&storage, "traffic-cop")?.lease(Duration::from_secs(options.lease));
    let stop = until_input_ends();
    let control = |leadership| control(number, leadership, stop.clone());
    tokio::select! {
        // Waits until the leadership is released, so that another candidate need not wait for the lease to
        // expire.
        led = leader.run_while_leader(control) => led?,
        () = candidate_is_stopped(&leader, stop.clone()) => {}
    }
    Ok(())
}

/// The work in control: only one process may do it.
async fn control(number: u32, leadership: Leadership, mut stop: watch::Receiver<bool>) {
    println!("instance {number}: in control (term {})", leadership.term());
    tokio::select! {
        () = leadership.token().cancelled() => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
    println!("instance {number}: lost control");
}

async fn candidate_is_stopped(leader: &Leader, mut stop: watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
    while leader.has_control() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Returns a signal that fires when standard input ends. The process that started this one holds the other
/// end, so its death is noticed here. Signals are left to it as well, because a terminal sends them to both.
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
