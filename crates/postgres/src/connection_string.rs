//! Reads connection strings and the environment variables of libpq.

use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use tokio_postgres::Config;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};

use crate::password_file::password_of_file;
use crate::servers::{CONNECT_TIMEOUT, check_servers};
use crate::settings::{Tls, Variables};

/// The default settings, which the string overrides. A load balancer drops a connection that is idle for some
/// minutes, and a host that is gone sends nothing. With these settings a dead connection ends after 70
/// seconds without traffic, and 10 seconds after sending a statement that is not acknowledged.
const DEFAULTS: &str = "keepalives_idle=60&keepalives_interval=10&keepalives_retries=3&tcp_user_timeout=10";

const MALFORMED: &str = "the connection string is malformed, or has a setting or a value that is not supported; characters such as `@`, `/`, `?` \
    and `#` in a password are written `%40`, `%2F`, `%3F` and `%23`";

/// The settings in a connection string.
pub(crate) struct Parsed {
    pub(crate) config: Config,
    pub(crate) tls: Tls,
    /// True if the passwords are tokens of Entra ID.
    pub(crate) uses_entra: bool,
    /// True unless the string has `listen=off`.
    pub(crate) listens: bool,
    pub(crate) schema: Option<String>,
}

/// Parses a connection string. Missing settings are taken from the variables.
///
/// # Errors
/// A sentence that names a setting, and never contains a value.
pub(crate) fn parse(text: &str, variable: Variables<'_>) -> Result<Parsed, String> {
    let is_url = text.starts_with("postgres://") || text.starts_with("postgresql://");
    if !is_url {
        return Err("the connection string does not begin with `postgres://`".to_owned());
    }
    if is_misread(text) {
        return Err(MALFORMED.to_owned());
    }
    let (text, own) = split(text)?;
    // The error is dropped, because it can quote a part of a password that was not encoded.
    let mut config =
        text.parse::<Config>().map_err(|_| wrong_setting(&text).unwrap_or_else(|| MALFORMED.to_owned()))?;
    fill(&mut config, variable)?;
    if !own.has_session_attrs {
        config.target_session_attrs(attributes(&config, variable)?);
    }
    let mode = own.mode.or_else(|| variable("PGSSLMODE")).unwrap_or_else(|| "prefer".to_owned());
    let root = own.root.or_else(|| variable("PGSSLROOTCERT")).map(PathBuf::from);
    let (mode, tls) = match mode.as_str() {
        "disable" => (SslMode::Disable, Tls::Unchecked),
        "allow" | "prefer" => (SslMode::Prefer, Tls::Unchecked),
        // Like libpq, which checks the authority for the sake of old programs.
        "require" => (SslMode::Require, root.map_or(Tls::Unchecked, Tls::Authority)),
        // A machine trusts many authorities. Without a check of the name, a certificate of any of them could
        // stand for the server.
        "verify-ca" => (SslMode::Require, root.map_or(Tls::Full(None), Tls::Authority)),
        "verify-full" => (SslMode::Require, Tls::Full(root)),
        _ => {
            return Err(
                "`sslmode` is none of disable, allow, prefer, require, verify-ca and verify-full".to_owned()
            );
        }
    };
    config.ssl_mode(mode);
    check_servers(&config)?;
    let OwnSettings { uses_entra, listen_is_off, schema, .. } = own;
    Ok(Parsed { config, tls, uses_entra, listens: !listen_is_off, schema })
}

/// Returns whether a password contains a character that should have been encoded. `tokio-postgres` takes
/// everything up to the first `@` for the role and its password, and the rest for hosts and a database.
fn is_misread(text: &str) -> bool {
    let has_another = |rest: &str| rest.split('?').next().is_some_and(|address| address.contains('@'));
    text.split_once('@').is_some_and(|(before, rest)| before.contains('?') || has_another(rest))
}

/// Returns a sentence with the name of the setting that is not supported, or whose value is not. Does not
/// repeat a name that may be a part of a password, as behind an `&` that was not encoded.
fn wrong_setting(text: &str) -> Option<String> {
    let (_, query) = text.split_once('?')?;
    let is_wrong = |pair: &&str| format!("postgres://h/d?{pair}").parse::<Config>().is_err();
    let (name, _) = query.split('&').find(is_wrong)?.split_once('=')?;
    let is_plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let text = || format!("`{name}` is no setting of a connection string, or its value is not supported");
    (is_plain && !query.contains("password=")).then(text)
}

/// The settings that `tokio-postgres` does not support, or does not return.
#[derive(Default)]
struct OwnSettings {
    mode: Option<String>,
    root: Option<String>,
    has_session_attrs: bool,
    uses_entra: bool,
    listen_is_off: bool,
    schema: Option<String>,
}

/// Separates these settings from a connection string, and adds defaults for others.
fn split(text: &str) -> Result<(String, OwnSettings), String> {
    let mut own = OwnSettings::default();
    let (address, query) = text.split_once('?').unwrap_or((text, ""));
    let mut others = vec![DEFAULTS];
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("sslmode", value)) => own.mode = Some(value.to_owned()),
            Some(("sslrootcert", value)) => {
                let root = percent_decode_str(value).decode_utf8();
                own.root = Some(root.map_err(|_| "`sslrootcert` is malformed")?.into_owned());
            }
            Some(("credential", "entra")) => own.uses_entra = true,
            Some(("credential", _)) => return Err("`credential` is not entra".to_owned()),
            Some(("schema", value)) => own.schema = Some(value.to_owned()),
            Some(("listen", "off")) => own.listen_is_off = true,
            Some(("listen", "on")) => {}
            Some(("listen", _)) => return Err("`listen` is none of on and off".to_owned()),
            Some(("sslcert" | "sslkey" | "sslpassword", _)) => {
                return Err("certificates of clients (`sslcert`, `sslkey`) are not supported".to_owned());
            }
            _ => {
                own.has_session_attrs |= pair.starts_with("target_session_attrs=");
                others.push(pair);
            }
        }
    }
    Ok((format!("{address}?{}", others.join("&")), own))
}

/// Sets missing settings from the variables.
fn fill(config: &mut Config, variable: Variables<'_>) -> Result<(), String> {
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        let hosts = variable("PGHOST").unwrap_or_else(|| "localhost".to_owned());
        for host in hosts.split(',') {
            config.host(host);
        }
    }
    if config.get_ports().is_empty()
        && let Some(ports) = variable("PGPORT")
    {
        for port in ports.split(',') {
            config.port(if port.is_empty() { 5_432 } else { to_number(port, "PGPORT")? });
        }
    }
    if config.get_user().is_none()
        && let Some(user) = variable("PGUSER").or_else(|| whoami::username().ok())
    {
        config.user(user);
    }
    if config.get_dbname().is_none()
        && let Some(name) = variable("PGDATABASE")
    {
        config.dbname(name);
    }
    fill_session(config, variable)?;
    if config.get_password().is_none()
        && let Some(password) = variable("PGPASSWORD").or_else(|| password_of_file(config, variable))
    {
        config.password(password);
    }
    Ok(())
}

fn number(variable: Variables<'_>, name: &str) -> Result<Option<u16>, String> {
    variable(name).map(|text| to_number(&text, name)).transpose()
}

fn to_number(text: &str, name: &str) -> Result<u16, String> {
    text.parse().map_err(|_| format!("the variable `{name}` is not a number"))
}

/// Sets missing settings of sessions from the variables.
fn fill_session(config: &mut Config, variable: Variables<'_>) -> Result<(), String> {
    if config.get_options().is_none()
        && let Some(options) = variable("PGOPTIONS")
    {
        config.options(options);
    }
    if config.get_application_name().is_none() {
        config.application_name(variable("PGAPPNAME").unwrap_or_else(|| "jobqueue".to_owned()));
    }
    if config.get_connect_timeout().is_none() {
        let seconds = number(variable, "PGCONNECT_TIMEOUT")?.filter(|seconds| *seconds > 0).map(u64::from);
        config.connect_timeout(seconds.map_or(CONNECT_TIMEOUT, Duration::from_secs));
    }
    Ok(())
}

/// Returns the kind of server to use. If the string names several servers, it is by default one that accepts
/// writes.
fn attributes(config: &Config, variable: Variables<'_>) -> Result<TargetSessionAttrs, String> {
    let servers = config.get_hosts().len().max(config.get_hostaddrs().len());
    match variable("PGTARGETSESSIONATTRS").as_deref() {
        Some("read-write" | "primary") => Ok(TargetSessionAttrs::ReadWrite),
        None if servers > 1 => Ok(TargetSessionAttrs::ReadWrite),
        None | Some("any") => Ok(TargetSessionAttrs::Any),
        Some(_) => {
            Err("the variable `PGTARGETSESSIONATTRS` is none of any, read-write and primary".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_postgres::config::Host;

    use super::*;

    fn none(_: &str) -> Option<String> {
        None
    }

    fn refused(text: &str) -> String {
        parse(text, &none).err().expect("it is refused")
    }

    #[test]
    fn sslmode_means_what_it_does_in_libpq() {
        let root = Some(PathBuf::from("/a b.pem"));
        for (query, mode, tls) in [
            ("", SslMode::Prefer, Tls::Unchecked),
            ("?sslmode=disable", SslMode::Disable, Tls::Unchecked),
            ("?sslmode=require", SslMode::Require, Tls::Unchecked),
            (
                "?sslmode=require&sslrootcert=/a%20b.pem",
                SslMode::Require,
                Tls::Authority(root.clone().unwrap()),
            ),
            ("?sslmode=verify-ca", SslMode::Require, Tls::Full(None)),
            (
                "?connect_timeout=3&sslmode=verify-full&sslrootcert=/a%20b.pem",
                SslMode::Require,
                Tls::Full(root),
            ),
        ] {
            let Parsed { config, tls: found, .. } =
                parse(&format!("postgres://u@h/d{query}"), &none).unwrap();
            assert_eq!(config.get_ssl_mode(), mode, "{query}");
            assert_eq!(found, tls, "{query}");
            assert_eq!(config.get_dbname(), Some("d"));
        }
        assert!(refused("postgres://u@h/d?sslmode=full").contains("sslmode"));
    }

    /// If the string names no database either, the database has the name of the role, which the description
    /// of the storage shows.
    #[test]
    fn user_of_the_machine_is_the_role_if_none_is_named() {
        let Parsed { config, .. } = parse("postgres://h", &none).unwrap();
        assert_eq!(config.get_user().map(str::to_owned), whoami::username().ok());
    }

    #[test]
    fn variables_set_what_the_string_lacks() {
        let variable = |name: &str| match name {
            "PGHOST" => Some("db".to_owned()),
            "PGPORT" => Some("6432".to_owned()),
            "PGUSER" => Some("app".to_owned()),
            "PGPASSWORD" => Some("secret".to_owned()),
            "PGDATABASE" => Some("shop".to_owned()),
            "PGSSLMODE" => Some("verify-full".to_owned()),
            "PGOPTIONS" => Some("-c statement_timeout=7".to_owned()),
            _ => None,
        };
        let Parsed { config, tls, .. } = parse("postgres://", &variable).unwrap();
        assert_eq!(config.get_hosts(), [Host::Tcp("db".to_owned())]);
        assert_eq!(config.get_ports(), [6432]);
        assert_eq!(config.get_user(), Some("app"));
        assert_eq!(config.get_dbname(), Some("shop"));
        assert_eq!(config.get_password(), Some(&b"secret"[..]));
        assert_eq!(tls, Tls::Full(None));
        assert_eq!(config.get_options(), Some("-c statement_timeout=7"));
        let Parsed { config, .. } =
            parse("postgres://other:p@host:1/d?options=-c%20a%3Db", &variable).unwrap();
        assert_eq!(config.get_options(), Some("-c a=b"));
        assert_eq!(config.get_user(), Some("other"));
        assert_eq!(config.get_ports(), [1]);
        assert_eq!(config.get_password(), Some(&b"p"[..]));
    }

    #[test]
    fn each_host_of_the_variables_has_its_port() {
        let variable = |name: &str| match name {
            "PGHOST" => Some("a,b,c".to_owned()),
            "PGPORT" => Some("6432,,6434".to_owned()),
            _ => None,
        };
        let Parsed { config, .. } = parse("postgres://", &variable).unwrap();
        assert_eq!(config.get_hosts().len(), 3);
        assert_eq!(config.get_ports(), [6432, 5432, 6434]);
        let wrong = |name: &str| (name == "PGPORT").then(|| "6432,x".to_owned());
        assert!(parse("postgres://", &wrong).err().expect("it is refused").contains("PGPORT"));
    }

    #[test]
    fn string_says_whether_to_listen() {
        let listens = |query: &str| parse(&format!("postgres://h/d{query}"), &none).unwrap().listens;
        assert!(listens(""));
        assert!(listens("?listen=on"));
        assert!(!listens("?sslmode=disable&listen=off"));
        assert!(refused("postgres://h/d?listen=never").contains("`listen`"));
    }

    /// Load balancers silently drop a connection that is idle for some minutes.
    #[test]
    fn dead_connections_are_noticed_unless_the_string_says_otherwise() {
        let Parsed { config, .. } = parse("postgres://h/d", &none).unwrap();
        assert_eq!(config.get_keepalives_idle(), Duration::from_secs(60));
        assert!(config.get_tcp_user_timeout().is_some_and(|limit| *limit <= Duration::from_secs(10)));
        let Parsed { config, .. } =
            parse("postgres://h/d?tcp_user_timeout=90&keepalives_idle=7200", &none).unwrap();
        assert_eq!(config.get_keepalives_idle(), Duration::from_secs(7200));
        assert_eq!(config.get_tcp_user_timeout(), Some(&Duration::from_secs(90)));
    }

    #[test]
    fn of_several_hosts_the_one_that_can_be_written_is_used() {
        let attributes = |text: &str, variable: Variables<'_>| {
            parse(text, variable).unwrap().config.get_target_session_attrs()
        };
        let any = |name: &str| (name == "PGTARGETSESSIONATTRS").then(|| "any".to_owned());
        let primary = |name: &str| (name == "PGTARGETSESSIONATTRS").then(|| "primary".to_owned());
        assert_eq!(attributes("postgres://h/d", &none), TargetSessionAttrs::Any);
        assert_eq!(attributes("postgres://h/d", &primary), TargetSessionAttrs::ReadWrite);
        assert_eq!(attributes("postgres://a,b/d", &none), TargetSessionAttrs::ReadWrite);
        assert_eq!(attributes("postgres://a,b/d", &any), TargetSessionAttrs::Any);
        assert_eq!(attributes("postgres://a,b/d?target_session_attrs=any", &none), TargetSessionAttrs::Any);
        assert_eq!(attributes("postgres://h/d?target_session_attrs=any", &primary), TargetSessionAttrs::Any);
    }

    #[test]
    fn errors_have_no_value_in_them() {
        for wrong in [
            "postgres://u:pass word@h:x/d",
            "postgres://u:hunter2@h/d?hunter2=1",
            "mysql://hunter2",
            "postgres://u:pass@hunter2@h/d",
            "postgres://u:pass@word/hunter2@h/d",
            "postgres://u:pass?word@hunter2@h/d",
            "postgres://u:pass@word:hunter2@h/d",
            "postgres://u:pass?hunter2@h/d",
            "postgres://h/d?application_name=hunter2@b",
            "postgres://h/d?password=pass&hunter=2",
            "postgres://h/d?port=hunter2",
        ] {
            let error = refused(wrong);
            assert!(!error.contains("hunter") && !error.contains("word@"), "{error}");
        }
    }

    #[test]
    fn error_names_the_wrong_setting() {
        for (query, name) in [("port=x", "`port`"), ("connect_timeout=3&search_path=a", "`search_path`")] {
            let error = refused(&format!("postgres://u:p@h/d?{query}"));
            assert!(error.starts_with(name), "{error}");
        }
    }

    #[test]
    fn encoded_characters_are_taken_as_they_are() {
        let Parsed { config, .. } =
            parse("postgres://u%40x:p%40ss@h/d%40b?application_name=a@b", &none).unwrap();
        assert_eq!(config.get_user(), Some("u@x"));
        assert_eq!(config.get_password(), Some(&b"p@ss"[..]));
        assert_eq!(config.get_dbname(), Some("d@b"));
        assert_eq!(config.get_application_name(), Some("a@b"));
    }

    /// Like libpq, ignores a file that others may read.
    #[cfg(unix)]
    #[test]
    fn password_file_of_the_owner_alone_is_read() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".pgpass");
        std::fs::write(&path, "h:5432:d:u:secret").unwrap();
        for variable_name in ["PGPASSFILE", "HOME"] {
            let place = if variable_name == "HOME" { folder.path() } else { &path };
            let variable = |name: &str| (name == variable_name).then(|| place.to_str().unwrap().to_owned());
            for (mode, expected) in [(0o600, Some(&b"secret"[..])), (0o640, None), (0o604, None)] {
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
                let Parsed { config, .. } = parse("postgres://u@h/d", &variable).unwrap();
                assert_eq!(config.get_password(), expected, "{variable_name} {mode:o}");
            }
            let Parsed { config, .. } = parse("postgres://u:own@h/d", &variable).unwrap();
            assert_eq!(config.get_password(), Some(&b"own"[..]));
        }
    }
}
