//! The machine, and how quickly its disk syncs.

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::subject::Result;

/// The properties of the machine on which the figures depend.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    cpu: String,
    cores: usize,
    memory_gib: u64,
    kernel: String,
    /// The number of `fdatasync` calls on a rewritten 4 KiB block per second.
    syncs_per_second: f64,
}

impl Machine {
    pub(crate) fn look(directory: &Path) -> Result<Self> {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split(':').nth(1)).unwrap_or("unknown").trim().to_owned()
        };
        let kib = field(&read("/proc/meminfo"), "MemTotal");
        let kib: u64 = kib.split(' ').next().and_then(|kib| kib.parse().ok()).unwrap_or(0);
        Ok(Self {
            cpu: field(&read("/proc/cpuinfo"), "model name"),
            cores: std::thread::available_parallelism()?.get(),
            memory_gib: (kib + (1 << 19)) >> 20,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            syncs_per_second: syncs(directory)?,
        })
    }
}

fn syncs(directory: &Path) -> Result<f64> {
    const TIMES: u32 = 300;
    let mut file = tempfile::tempfile_in(directory)?;
    let block = [7; 4096];
    file.write_all(&block)?;
    file.sync_all()?;
    let started = Instant::now();
    for _ in 0..TIMES {
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&block)?;
        file.sync_data()?;
    }
    Ok(f64::from(TIMES) / started.elapsed().as_secs_f64())
}

/// Returns the processor time that this process has used.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns the present and the maximum memory of this process in MiB.
pub(crate) fn memory() -> (f64, f64) {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mib = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name));
        let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
        kib.unwrap_or(f64::NAN) / 1024.0
    };
    (mib("VmRSS"), mib("VmHWM"))
}
