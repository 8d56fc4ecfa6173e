//! The beginnings of processes, and the ends of processes, links and locks.

use std::time::Instant;

use jobqueue::Storage;
use jobqueue::servicebus::Options;
use rand::RngExt;

use super::{LOCK, TWO, World};

const ENDS: [&str; 4] = ["detach", "end-session", "close-connection", "abort"];

impl World {
    pub(super) fn process(&self) -> Storage {
        let options = Options::from_connection_string(self.emulator.connection_string()).unwrap();
        Storage::from(options.with_blobs_of(&self.blobs).unwrap())
    }

    /// Ends links of the queue or all, or what carries them.
    pub(super) fn strike(&mut self) {
        let entity = self.random.random_bool(0.5).then_some("work");
        self.emulator.strike(ENDS[self.random.random_range(0..ENDS.len())], entity);
        self.shake();
    }

    /// Lets the locks of all sessions run out.
    pub(super) fn expire(&mut self) {
        self.emulator.advance(2 * LOCK);
        self.shake();
    }

    /// Returns whether the client of AMQP has ended its links by itself since the last time: a detach of its
    /// own that is late may meet the next link of the same handle, and the service ends the session for that.
    pub(super) fn was_shaken_by_client(&mut self) -> bool {
        let so_far = self.emulator.frames()["unattached"].as_u64().unwrap();
        let is_new = so_far > std::mem::replace(&mut self.unattached, so_far);
        if is_new {
            self.shake();
        }
        is_new
    }

    fn shake(&mut self) {
        self.shaken = Some(Instant::now());
        self.leases.values_mut().for_each(|lease| lease.may_be_lost = true);
    }

    /// Ends a process, and begins another in its place. What it had leased comes again.
    pub(super) fn kill(&mut self) {
        let process = self.random.random_range(0..TWO);
        self.processes[process] = self.process();
        self.leases.retain(|_, lease| lease.process != process);
        self.stale.retain(|(_, lease)| lease.process != process);
    }
}
