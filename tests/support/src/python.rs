//! Virtual environments with the packages of a committed list, made once for all programs.

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The error text for a machine without Python.
const INSTALL_PYTHON: &str = "Python 3.9 or newer with venv is needed; \
    install it with `apt-get install python3-venv`, `brew install python`, or from https://python.org";

/// The reason why there is no environment.
#[derive(Debug)]
pub enum NoEnvironment {
    /// Python is missing or too old, or refuses the list.
    Failed(String),
    /// The packages could not be downloaded: no connection to the package index.
    Unreachable(String),
}

impl fmt::Display for NoEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(why) => f.write_str(why),
            Self::Unreachable(why) => write!(f, "the Python package index cannot be reached: {why}"),
        }
    }
}

impl std::error::Error for NoEnvironment {}

/// Returns the interpreter of the virtual environment `target/NAME/venv`. Creates it if it is missing or has
/// other packages than those in `requirements`.
///
/// # Errors
/// Python is missing, or the packages cannot be installed.
///
/// # Panics
/// The folder of build products or the list cannot be used.
pub fn environment(name: &str, requirements: &Path) -> Result<PathBuf, NoEnvironment> {
    let home = crate::target_folder().join(name);
    fs::create_dir_all(&home).expect("a folder in target");
    // Test programs run at the same time; one installs, the others wait.
    let lock = File::create(home.join(".lock")).expect("a lock file");
    lock.lock().expect("the lock");
    let venv = home.join("venv");
    let python = if cfg!(windows) { venv.join("Scripts/python.exe") } else { venv.join("bin/python") };
    let wanted = fs::read(requirements).expect("the committed list");
    let stamp = home.join(".installed");
    if fs::read(&stamp).ok().as_deref() != Some(wanted.as_slice()) || !python.exists() {
        let system = if cfg!(windows) { "python" } else { "python3" };
        step(Command::new(system).args(["-m", "venv", "--clear"]).arg(&venv))?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"];
        step(Command::new(&python).args(pip).arg(requirements))?;
        fs::write(&stamp, &wanted).expect("a stamp in target");
    }
    Ok(python)
}

fn step(command: &mut Command) -> Result<(), NoEnvironment> {
    let Output { status, stderr, .. } = command.output().map_err(|error| {
        NoEnvironment::Failed(format!("{command:?} cannot be started ({error}): {INSTALL_PYTHON}"))
    })?;
    if status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&stderr);
    // pip prints this each time that a connection fails.
    if stderr.contains("Retrying (Retry(") {
        return Err(NoEnvironment::Unreachable(stderr.into_owned()));
    }
    Err(NoEnvironment::Failed(format!("{command:?} failed; {INSTALL_PYTHON}\n{stderr}")))
}
