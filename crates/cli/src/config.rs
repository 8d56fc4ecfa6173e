//! The configuration file with its contexts.

use std::collections::{BTreeMap, BTreeSet};
use std::env::VarError;
use std::path::{Path, PathBuf};

use jobqueue_admin::{AccessLevel, Action};
use serde::Deserialize;

use crate::exit::Failure;
use crate::secrets::has_secret;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// The default context, which only commands that read may use.
    pub(crate) default: Option<String>,
    #[serde(default)]
    contexts: BTreeMap<String, Context>,
    #[serde(skip)]
    path: Option<PathBuf>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Context {
    storage: Option<String>,
    storage_env: Option<String>,
    /// True if changes must be confirmed.
    #[serde(default)]
    pub(crate) production: bool,
    access: Option<Access>,
}

#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Access {
    Level(String),
    Actions(Vec<String>),
}

/// Returns the value of an environment variable, or `None` if it is unset or blank. Removes the line break at
/// the end that a mounted secret has.
///
/// A value that is not UTF-8 is an error: treated as unset, it would select another storage or disable a
/// login.
pub(crate) fn variable(name: &str) -> Result<Option<String>, Failure> {
    match std::env::var(name) {
        Ok(value) => {
            let value = value.trim_end_matches(['\r', '\n']);
            Ok((!value.trim().is_empty()).then(|| value.to_owned()))
        }
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => {
            Err(Failure::Usage(format!("the environment variable {name} is not UTF-8")))
        }
    }
}

impl Config {
    /// Reads the file `chosen`, or else the default file. A missing default file means that there are no
    /// contexts.
    pub(crate) fn read(chosen: Option<&Path>) -> Result<Self, Failure> {
        let default = default_path();
        let Some(path) = chosen.or(default.as_deref()) else { return Ok(Self::default()) };
        let shown = path.display();
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && chosen.is_none() => {
                return Ok(Self { path: Some(path.to_owned()), ..Self::default() });
            }
            Err(e) => {
                return Err(Failure::Usage(format!("the configuration file {shown} cannot be read: {e}")));
            }
        };
        if has_secret(&text) {
            warn_if_others_can_read(path);
        }
        let mut config: Self =
            toml::from_str(&text).map_err(|e| Failure::Usage(format!("{shown}: {}", problem(&e, &text))))?;
        config.path = Some(path.to_owned());
        Ok(config)
    }

    pub(crate) fn context(&self, name: &str) -> Result<&Context, Failure> {
        self.contexts.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.contexts.keys().map(String::as_str).collect();
            let path =
                self.path.as_deref().map_or_else(|| "the file".to_owned(), |path| path.display().to_string());
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            Failure::Usage(format!("there is no context `{name}`; {path} has: {known}"))
        })
    }
}

impl Context {
    pub(crate) fn storage(&self, name: &str) -> Result<String, Failure> {
        match (&self.storage, &self.storage_env) {
            (Some(storage), None) => Ok(storage.clone()),
            (None, Some(named)) => variable(named)?.ok_or_else(|| {
                Failure::Usage(format!("context `{name}`: the environment variable {named} is not set"))
            }),
            _ => Err(Failure::Usage(format!("context `{name}` needs either `storage` or `storage_env`"))),
        }
    }

    pub(crate) fn access(&self, name: &str) -> Result<AccessLevel, Failure> {
        let wrong = |word: &str| {
            let text = format!(
                "context `{name}`: `access` is \"operate\", \"read_only\" or a list of actions, not `{word}`; the actions are: {}",
                Action::ALL.iter().map(|action| action.name()).collect::<Vec<_>>().join(", ")
            );
            Failure::Usage(text)
        };
        match &self.access {
            None => Ok(AccessLevel::Operate),
            Some(Access::Level(level)) => match level.as_str() {
                "operate" => Ok(AccessLevel::Operate),
                "read_only" => Ok(AccessLevel::ReadOnly),
                other => Err(wrong(other)),
            },
            Some(Access::Actions(names)) => {
                let actions = names.iter().map(|name| Action::from_name(name).ok_or_else(|| wrong(name)));
                Ok(AccessLevel::Only(actions.collect::<Result<BTreeSet<_>, _>>()?))
            }
        }
    }
}

/// Returns the problem and its line, without values of the file, which may be secrets: the error's `Display`
/// quotes the line, and a message that begins with "invalid" quotes the value.
fn problem(error: &toml::de::Error, text: &str) -> String {
    let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
    match error.message() {
        message if message.starts_with("invalid") => format!("line {line} has a value of the wrong type"),
        message => format!("line {line}: {}", message.lines().next().unwrap_or("it is not TOML")),
    }
}

fn default_path() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = variable("XDG_CONFIG_HOME")
        .or_else(|| variable("HOME").map(|home| home.join(".config")))
        .or_else(|| variable("APPDATA"))?;
    Some(folder.join("jobqueue").join("config.toml"))
}

#[cfg(unix)]
fn warn_if_others_can_read(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let open = std::fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o077 != 0);
    if open {
        tracing::warn!("others can read {}, which contains a key: run chmod 600 on it", path.display());
    }
}

#[cfg(not(unix))]
fn warn_if_others_can_read(_: &Path) {}
