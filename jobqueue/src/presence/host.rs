//! The name of this host.

use std::sync::OnceLock;

/// The most characters of the name.
const MAX_CHARS: usize = 100;

/// Returns the name of this host, as far as the environment or the system's files tell it; `unknown` otherwise.
pub(crate) fn name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let files = ["/proc/sys/kernel/hostname", "/etc/hostname"];
        let from_files = files.iter().filter_map(|file| std::fs::read_to_string(file).ok());
        let from_environment =
            ["HOSTNAME", "COMPUTERNAME"].iter().filter_map(|name| std::env::var(name).ok());
        let plain = |name: String| {
            let name = name.trim().chars().filter(|c| !c.is_control()).take(MAX_CHARS).collect::<String>();
            Some(name).filter(|name| !name.is_empty())
        };
        from_files.chain(from_environment).find_map(plain).unwrap_or_else(|| "unknown".to_owned())
    })
}
