//! The driver of the Azure side runs through all of its phases, with a few jobs each. What it measures is
//! printed and not judged.

use std::process::Command;

#[test]
fn quick_run_of_the_azure_driver_ends_without_an_error() {
    let status =
        Command::new(env!("CARGO_BIN_EXE_jobqueue-bench-azure")).args(["all", "--quick"]).status().unwrap();
    assert!(status.success(), "{status}");
}
