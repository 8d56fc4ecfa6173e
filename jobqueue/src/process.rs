//! The names of this host and this program.

use std::sync::OnceLock;

/// The maximum length of a host's name.
const MAX_HOST_CHARS: usize = 100;

/// Returns the name of this program's file, without characters that a URI reference would have to escape.
pub(crate) fn program() -> String {
    let program = std::env::current_exe().ok();
    let stem = program.as_deref().and_then(|path| path.file_stem()).map(|stem| stem.to_string_lossy());
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    stem.as_deref().unwrap_or("program").chars().take(80).map(plain).collect()
}

/// Returns the name of this host from the system's files or the environment, or else `unknown`.
pub(crate) fn host() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let files = ["/proc/sys/kernel/hostname", "/etc/hostname"];
        let from_files = files.iter().filter_map(|file| std::fs::read_to_string(file).ok());
        let from_environment =
            ["HOSTNAME", "COMPUTERNAME"].iter().filter_map(|name| std::env::var(name).ok());
        let plain = |name: String| {
            let name =
                name.trim().chars().filter(|c| !c.is_control()).take(MAX_HOST_CHARS).collect::<String>();
            Some(name).filter(|name| !name.is_empty())
        };
        from_files.chain(from_environment).find_map(plain).unwrap_or_else(|| "unknown".to_owned())
    })
}
