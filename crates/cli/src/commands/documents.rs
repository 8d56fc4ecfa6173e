//! `completions` and `man`: documents that are generated from the definition of the commands.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

use crate::exit::Failure;
use crate::output::print;

#[derive(Args)]
pub(crate) struct CompletionArguments {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Args)]
pub(crate) struct ManArguments {
    /// The folder into which a page for each command is written
    #[arg(long, value_name = "FOLDER")]
    to: Option<PathBuf>,
}

pub(crate) fn completions(arguments: &CompletionArguments) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut crate::command(), "jobqueue", &mut text);
    print(&String::from_utf8_lossy(&text))
}

pub(crate) fn man(arguments: &ManArguments) -> Result<(), Failure> {
    if let Some(folder) = &arguments.to {
        std::fs::create_dir_all(folder)?;
        return Ok(clap_mangen::generate_to(crate::command(), folder)?);
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(crate::command()).render(&mut page)?;
    print(&String::from_utf8_lossy(&page))
}
