//! Disturbances of connections.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt};

use crate::mix::features::Feature;
use crate::mix::plan::Plan;

/// The rate at which a connection with traffic is disturbed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rates {
    share: f64,
}

/// A disturbance of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) enum Trouble {
    /// The connection is cut. If `arrives`, bytes in transit to the service still arrive. Bytes in transit to
    /// the client are lost.
    Cut { arrives: bool },
    /// No bytes pass for a while, in either direction.
    Mute(Duration),
    /// The service ends a link, the AMQP session or the connection.
    Ended { what: &'static str, choice: u32 },
}

impl Rates {
    pub(super) fn of(plan: &Plan) -> Self {
        let faults = if plan.has(Feature::Faults) { plan.faults / 5.0 } else { 0.0 };
        let outages = if plan.has(Feature::Outages) { 0.002 } else { 0.0 };
        Self { share: faults + outages }
    }

    /// Draws the disturbance of a connection in an exchange, if any.
    pub(super) fn draw(self, rng: &mut StdRng) -> Option<Trouble> {
        if self.share == 0.0 || !rng.random_bool(self.share) {
            return None;
        }
        Some(match rng.random_range(0..6) {
            0 | 1 => Trouble::Cut { arrives: rng.random() },
            2 => Trouble::Mute(Duration::from_millis(rng.random_range(500..90_000))),
            _ => Trouble::Ended {
                what: ["detach", "detach", "end-session", "close-connection"]
                    .choose(rng)
                    .copied()
                    .unwrap_or("detach"),
                choice: rng.next_u32(),
            },
        })
    }
}

/// Draws how long the service takes to notice that a process has died: no time at all, or until it gives up
/// the host.
pub(super) fn draw_notice_delay(rng: &mut StdRng) -> Duration {
    if rng.random_bool(0.7) { Duration::ZERO } else { Duration::from_millis(rng.random_range(1_000..60_000)) }
}

/// Draws how long bytes are in transit.
pub(super) fn draw_latency(rng: &mut StdRng) -> Duration {
    let millis = if rng.random_bool(0.02) { rng.random_range(50..800) } else { rng.random_range(1..10) };
    Duration::from_millis(millis)
}
