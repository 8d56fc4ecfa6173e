//! Reads the password file of libpq.

use std::path::PathBuf;

use tokio_postgres::Config;
use tokio_postgres::config::Host;

use crate::settings::Variables;

/// Looks up the password in `~/.pgpass` by the first host, or by its address if it has no name. A Unix socket
/// counts as `localhost`. Like libpq, ignores a file that others may read.
pub(crate) fn password_of_file(config: &Config, variable: Variables<'_>) -> Option<String> {
    let home = || Some(PathBuf::from(variable("HOME")?).join(".pgpass"));
    let path = variable("PGPASSFILE").map(PathBuf::from).or_else(home)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        if std::fs::metadata(&path).ok()?.permissions().mode() & 0o077 != 0 {
            jobqueue_storage::log::warn!(
                "the password file may be read by others and is ignored; `chmod 0600` it"
            );
            return None;
        }
    }
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(name)) => name.clone(),
        #[cfg(unix)]
        Some(Host::Unix(_)) => "localhost".to_owned(),
        None => config.get_hostaddrs().first()?.to_string(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432).to_string();
    let user = config.get_user()?.to_owned();
    let database = config.get_dbname().unwrap_or(&user).to_owned();
    find_password(&std::fs::read_to_string(path).ok()?, &[&host, &port, &database, &user])
}

/// Finds the first line whose first four fields equal the wanted ones, or are `*`. A backslash quotes the
/// next character.
fn find_password(file: &str, wanted: &[&str; 4]) -> Option<String> {
    file.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let (mut fields, mut characters) = (vec![String::new()], line.chars());
        while let Some(character) = characters.next() {
            match character {
                '\\' => fields.last_mut()?.extend(characters.next()),
                ':' if fields.len() < 5 => fields.push(String::new()),
                other => fields.last_mut()?.push(other),
            }
        }
        let password = if fields.len() == 5 { fields.pop() } else { None }?;
        let is_meant = fields.iter().zip(wanted).all(|(field, wanted)| field == "*" || field == wanted);
        is_meant.then_some(password)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_found_by_their_fields() {
        let file = "# no\nother:*:*:*:no\nh:5432:d:u:a\\:b:c\n*:*:*:*:rest\n";
        assert_eq!(find_password(file, &["h", "5432", "d", "u"]).as_deref(), Some("a:b:c"));
        assert_eq!(find_password(file, &["h", "1", "d", "u"]).as_deref(), Some("rest"));
        assert_eq!(find_password("h:1:d:u", &["h", "1", "d", "u"]), None);
    }

    #[test]
    fn address_is_looked_up_if_there_is_no_name() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "192.0.2.1:5432:d:u:of the address\nh:5432:d:u:of the name\n").unwrap();
        let variable = |name: &str| (name == "PGPASSFILE").then(|| file.path().to_str().unwrap().to_owned());
        let password = |text: &str| password_of_file(&text.parse().unwrap(), &variable);
        let address = "hostaddr=192.0.2.1 dbname=d user=u";
        assert_eq!(password(address).as_deref(), Some("of the address"));
        assert_eq!(password(&format!("host=h {address}")).as_deref(), Some("of the name"));
    }
}
