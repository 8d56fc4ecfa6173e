//! The memory of the program while it serves. Only on Linux, whose kernel records the maximum.

use std::fs;
use std::thread;

use jobqueue::Storage;

use crate::serve::Served;
use crate::support::{Mail, Sandbox};

/// The largest payload that is shown.
const PAYLOAD_BYTES: usize = 32 * 1024 * 1024;
const MAX_MIB: u64 = 100;

/// Returns a sandbox whose queue `mails` has the job `large`, with a payload of 32 MiB.
fn with_a_large_mail() -> Sandbox {
    let sandbox = Sandbox::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mails = Storage::connect(&sandbox.storage).await.unwrap().queue::<Mail>().await.unwrap();
        let to = "x".repeat(PAYLOAD_BYTES - r#"{"to":""}"#.len());
        mails.send(&Mail { to }).id("large").await.unwrap();
    });
    sandbox
}

/// Returns the most memory that the process has used until now, in MiB.
fn peak_mib(served: &Served) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", served.process())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

// D22
#[test]
fn page_of_a_job_of_32_mib_costs_less_than_100_mib() {
    let sandbox = with_a_large_mail();
    let served = Served::start(&sandbox, &[], &[]);
    let show = |fields: &str| {
        let page = served.get(&format!("/job?queue=mails&id=large{fields}"));
        assert!(page.starts_with("HTTP/1.1 200"), "{page}");
        page
    };
    assert!(!show("").contains("xxxxxxxx"), "the page shows the payload on request only");
    let before = peak_mib(&served);
    assert!(show("&show=content").contains("xxxxxxxx"));
    let of_one = peak_mib(&served) - before;
    assert!(of_one < MAX_MIB, "{of_one} MiB");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| show("&show=content"));
        }
    });
    let of_all = peak_mib(&served) - before;
    assert!(of_all < MAX_MIB, "{of_all} MiB for viewers at the same time");
}
