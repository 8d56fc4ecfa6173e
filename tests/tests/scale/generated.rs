//! The code of KEDA's interface, made from the file that describes it.

use std::path::Path;
use std::{env, fs};

#[test]
fn keda_code_is_made_from_the_proto() {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("../jobqueue-dashboard/src/keda");
    let descriptors = protox::compile(["externalscaler.proto"], [&home]).unwrap();
    let out = tempfile::tempdir().unwrap();
    let builder = tonic_prost_build::configure().build_client(false).build_transport(false);
    builder.out_dir(out.path()).compile_fds(descriptors).unwrap();
    let wanted = fs::read_to_string(out.path().join("externalscaler.rs")).unwrap();
    let committed = home.join("generated.rs");
    if env::var_os("JOBQUEUE_BLESS").is_some() {
        fs::write(committed, wanted).unwrap();
    } else {
        assert_eq!(fs::read_to_string(committed).unwrap(), wanted, "accept by JOBQUEUE_BLESS=1");
    }
}
