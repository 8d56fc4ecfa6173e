//! Starts a program: its options and its log.

use clap::Parser;
use tracing_subscriber::EnvFilter;

/// Returns the options of this process, and starts a log on standard error as `RUST_LOG` configures it.
///
/// Wrong arguments end the process with one line on standard error and exit code 2. `--help` ends it with the help
/// text.
pub fn start<Options: Parser>() -> Options {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(told) if !told.use_stderr() => told.exit(),
        Err(wrong) => {
            // One line, not a page.
            let text = wrong.to_string();
            eprintln!("{} (try --help)", text.lines().next().unwrap_or("the arguments are not understood"));
            std::process::exit(wrong.exit_code());
        }
    };
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    options
}
