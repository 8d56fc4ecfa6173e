//! The servers that a connection string names, each with all settings of the string.

use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, LoadBalanceHosts};

/// The default time limit of a connection to an address.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Refuses lists of hosts, addresses and ports that do not match each other.
pub(crate) fn check_servers(config: &Config) -> Result<(), String> {
    let (hosts, addresses) = (config.get_hosts().len(), config.get_hostaddrs().len());
    let servers = hosts.max(addresses);
    if hosts > 0 && addresses > 0 && hosts != addresses {
        return Err("the number of `host`s is not that of `hostaddr`s".to_owned());
    }
    if config.get_ports().len() > 1 && config.get_ports().len() != servers {
        return Err("there are several ports, and another number of hosts".to_owned());
    }
    Ok(())
}

/// Returns a configuration for each server that the string names. Servers to be tried in random order stay in
/// a single configuration.
pub(crate) fn of_each_server(config: &Config) -> Vec<Config> {
    let servers = config.get_hosts().len().max(config.get_hostaddrs().len());
    if servers < 2 || config.get_load_balance_hosts() == LoadBalanceHosts::Random {
        return vec![config.clone()];
    }
    (0..servers).map(|number| of_server(config, number)).collect()
}

fn of_server(all: &Config, number: usize) -> Config {
    let mut server = Config::new();
    match all.get_hosts().get(number) {
        Some(Host::Tcp(name)) => _ = server.host(name),
        #[cfg(unix)]
        Some(Host::Unix(path)) => _ = server.host_path(path),
        None => {}
    }
    all.get_hostaddrs().get(number).map(|address| server.hostaddr(*address));
    all.get_ports().get(number).or(all.get_ports().first()).map(|port| server.port(*port));
    all.get_user().map(|user| server.user(user));
    all.get_password().map(|password| server.password(password));
    all.get_dbname().map(|name| server.dbname(name));
    all.get_options().map(|options| server.options(options));
    all.get_application_name().map(|name| server.application_name(name));
    all.get_connect_timeout().map(|timeout| server.connect_timeout(*timeout));
    all.get_tcp_user_timeout().map(|timeout| server.tcp_user_timeout(*timeout));
    all.get_keepalives_interval().map(|interval| server.keepalives_interval(interval));
    all.get_keepalives_retries().map(|retries| server.keepalives_retries(retries));
    server
        .keepalives(all.get_keepalives())
        .keepalives_idle(all.get_keepalives_idle())
        .ssl_mode(all.get_ssl_mode())
        .ssl_negotiation(all.get_ssl_negotiation())
        .target_session_attrs(all.get_target_session_attrs())
        .channel_binding(all.get_channel_binding());
    server
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        text.parse().unwrap()
    }

    #[test]
    fn each_server_has_all_settings() {
        let settings = "application_name=a&connect_timeout=3&options=-c%20x%3D1&tcp_user_timeout=4&keepalives=0&keepalives_idle=5\
            &keepalives_interval=6&keepalives_retries=7&sslmode=require&sslnegotiation=direct&target_session_attrs=read-write\
            &channel_binding=require";
        let all = config(&format!("postgres://u:p@a:1,b:2/d?{settings}"));
        let each = [("a", 1), ("b", 2)]
            .map(|(host, port)| config(&format!("postgres://u:p@{host}:{port}/d?{settings}")));
        assert_eq!(of_each_server(&all), each);
        let sockets = config("postgres://u@%2Frun%2Fa,%2Frun%2Fb/d");
        assert_eq!(
            of_each_server(&sockets),
            ["a", "b"].map(|name| config(&format!("postgres://u@%2Frun%2F{name}:5432/d")))
        );
    }

    #[test]
    fn lists_that_do_not_belong_together_are_refused() {
        for (wrong, word) in
            [("postgres://a,b/d?hostaddr=::1", "hostaddr"), ("postgres://a:1,b:2,c:3/d?port=4", "ports")]
        {
            let error = check_servers(&config(wrong)).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
        assert_eq!(check_servers(&config("postgres://a,b:2/d")), Ok(()));
    }

    #[test]
    fn servers_in_a_random_order_stay_together() {
        let random = config("postgres://a,b/d?load_balance_hosts=random");
        assert_eq!(of_each_server(&random), [random]);
    }
}
