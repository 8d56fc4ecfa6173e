//! Starts a program: its options and its log.

use clap::Parser;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Returns the options of this process, and starts a log on standard error as `RUST_LOG` configures it.
///
/// Wrong arguments end the process with one line on standard error and exit code 2. `--help` ends it with the
/// help text.
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
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    tracing_subscriber::registry().with(lines).with(wanted()).init();
    options
}

/// Returns the levels that `RUST_LOG` asks for, such as `warn,jobqueue=debug`; errors only if it is missing
/// or wrong. `Targets` needs no regular expressions, which would take long to compile.
fn wanted() -> Targets {
    let told = std::env::var("RUST_LOG").ok().and_then(|levels| levels.parse().ok());
    told.unwrap_or_else(|| Targets::new().with_default(LevelFilter::ERROR))
}
