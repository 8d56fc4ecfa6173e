//! Starts a program: its options and its log.

use clap::Parser;
use tracing_subscriber::EnvFilter;

/// The options of this process, and a log on standard error as `RUST_LOG` asks for it.
///
/// Wrong arguments end the process: one line on standard error, exit code 2. So does `--help`, with what it asked for.
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
