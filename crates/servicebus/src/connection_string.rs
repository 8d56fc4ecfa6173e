//! Parses connection strings of Service Bus.
//!
//! An invalid string is refused with the name of the wrong setting. Values and unknown names are never
//! repeated: either may be part of a key.

use jobqueue_storage::secret::{Secret, is_loopback};
use url::Url;

use super::network::Network;
use super::sas::Key;

pub(super) type Problem = String;

/// The key of every emulator, which is no secret.
const EMULATOR_KEY: &str = "SAS_KEY_VALUE";

#[derive(Debug, Clone)]
pub(super) struct Namespace {
    pub(super) host: String,
    pub(super) port: Option<u16>,
    /// False for emulators, which have no TLS.
    pub(super) tls: bool,
    pub(super) web_socket: bool,
    /// The network of a simulation; `None` for sockets.
    pub(super) network: Option<std::sync::Arc<dyn Network>>,
}

impl Namespace {
    pub(super) fn amqp_port(&self) -> u16 {
        self.port.unwrap_or(match (self.web_socket, self.tls) {
            (false, true) => 5671,
            (false, false) => 5672,
            (true, true) => 443,
            (true, false) => 80,
        })
    }

    /// Returns the host as needed for sockets and certificates: an IPv6 address without brackets.
    pub(super) fn address(&self) -> &str {
        self.host.trim_matches(['[', ']'])
    }

    /// Returns the name of the namespace in blob names, reduced to the characters that these allow.
    pub(super) fn name(&self) -> String {
        let port = self.port.map(|port| format!("-{port}")).unwrap_or_default();
        let host = self.address().trim_end_matches('.').to_ascii_lowercase();
        let host = host.replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "-");
        format!("{host}{port}")
    }

    pub(super) fn http(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        let port = self.port.or(if self.tls { None } else { Some(5300) });
        match port {
            Some(port) => format!("{scheme}://{}:{port}", self.host),
            None => format!("{scheme}://{}", self.host),
        }
    }
}

/// Parses
/// `Endpoint=sb://…;SharedAccessKeyName=…;SharedAccessKey=…[;TransportType=AmqpWebSockets][;UseDevelopmentEmulator=true]`.
/// Returns no key for a string without name and key: tokens then come from Entra ID.
pub(super) fn parse(text: &str) -> Result<(Namespace, Option<Key>), Problem> {
    let (mut endpoint, mut name, mut secret) = (None, None, None);
    let (mut emulator, mut web_socket) = (false, false);
    for (index, setting) in text.split(';').enumerate().filter(|(_, setting)| !setting.trim().is_empty()) {
        let place = index + 1;
        let (left, value) = setting.split_once('=').ok_or_else(|| {
            format!("setting {place} of the connection string is not of the form Name=Value")
        })?;
        let value = value.trim();
        match left.trim().to_ascii_lowercase().as_str() {
            "endpoint" => endpoint = Some(value),
            "sharedaccesskeyname" => name = Some(value),
            "sharedaccesskey" => secret = Some(value),
            "usedevelopmentemulator" => emulator = value.eq_ignore_ascii_case("true"),
            "transporttype" => {
                web_socket = match value.to_ascii_lowercase().as_str() {
                    "amqp" => false,
                    "amqpwebsockets" => true,
                    _ => return Err("TransportType must be Amqp or AmqpWebSockets".to_owned()),
                }
            }
            "entitypath" => {
                return Err(
                    "EntityPath names one queue; use the connection string of the namespace".to_owned()
                );
            }
            _ => {
                return Err(format!(
                    "setting {place} of the connection string has an unknown name; known are Endpoint, \
                     SharedAccessKeyName, SharedAccessKey, TransportType, UseDevelopmentEmulator and Blobs"
                ));
            }
        }
    }
    let endpoint = endpoint.ok_or("Endpoint is missing")?;
    let (host, port) = host(endpoint).ok_or("Endpoint must be sb://NAMESPACE.servicebus.windows.net/")?;
    let key = match (name.unwrap_or_default(), secret.unwrap_or_default()) {
        _ if name.is_none() && secret.is_none() => None,
        ("", _) => return Err("SharedAccessKeyName is missing".to_owned()),
        (_, "") => return Err("SharedAccessKey is missing".to_owned()),
        (name, secret) => Some(Key { name: name.into(), secret: Secret::new(secret.to_owned()) }),
    };
    if emulator {
        check_emulator(&host, key.as_ref())?;
    }
    let namespace = Namespace { host, port, tls: !emulator, web_socket, network: None };
    Ok((namespace, key))
}

/// Refuses to send tokens of a key unencrypted to another machine.
fn check_emulator(host: &str, key: Option<&Key>) -> Result<(), Problem> {
    let key = key.ok_or("an emulator needs SharedAccessKeyName and SharedAccessKey")?;
    if !is_loopback(host) && key.secret.expose() != EMULATOR_KEY {
        return Err(
            "UseDevelopmentEmulator=true sends the tokens of its key in the clear: it is allowed to this machine \
             (loopback), and to others with the public key of the emulator only"
                .to_owned(),
        );
    }
    Ok(())
}

fn host(endpoint: &str) -> Option<(String, Option<u16>)> {
    let url = Url::parse(endpoint).ok()?;
    let is_plain = url.scheme() == "sb" && url.username().is_empty() && url.password().is_none();
    let host = url.host_str().filter(|host| is_plain && !host.is_empty())?;
    Some((host.to_owned(), url.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_is_read_from_the_portals_string() {
        let (read, key) =
            parse("Endpoint=sb://a.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=k=")
                .unwrap();
        assert_eq!(read.host, "a.servicebus.windows.net");
        assert_eq!(read.amqp_port(), 5671);
        assert_eq!(read.http(), "https://a.servicebus.windows.net");
        assert_eq!(key.unwrap().secret.expose(), "k=");
        assert!(parse("Endpoint=sb://a.servicebus.windows.net/").unwrap().1.is_none());
    }

    #[test]
    fn emulator_has_no_tls() {
        let text =
            "Endpoint=sb://localhost:9;SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true;";
        let (read, _) = parse(text).unwrap();
        assert!(!read.tls);
        assert_eq!(read.amqp_port(), 9);
        assert_eq!(read.http(), "http://localhost:9");
    }

    #[test]
    fn unencrypted_keys_go_to_this_machine_only() {
        let text = |host: &str, key: &str| {
            format!(
                "Endpoint=sb://{host};SharedAccessKeyName=n;SharedAccessKey={key};UseDevelopmentEmulator=true"
            )
        };
        for host in ["localhost", "127.0.0.1:9", "[::1]"] {
            assert!(parse(&text(host, "k")).is_ok(), "{host}");
        }
        for host in ["a.servicebus.windows.net/", "10.0.0.5", "localhost.example"] {
            assert!(parse(&text(host, "tops3cret")).unwrap_err().contains("in the clear"), "{host}");
            // In a container network, the emulator has its own host name.
            assert!(parse(&text(host, EMULATOR_KEY)).is_ok(), "{host}");
        }
    }

    // The brackets belong to URLs: a host name with them cannot be resolved.
    #[test]
    fn ipv6_address_is_used_without_brackets() {
        let (read, _) = parse("Endpoint=sb://[::1]:9").unwrap();
        assert_eq!(read.address(), "::1");
        assert_eq!(read.http(), "https://[::1]:9");
    }

    #[test]
    fn blob_names_distinguish_namespaces() {
        for (endpoint, name) in [
            ("a.servicebus.windows.net/", "a.servicebus.windows.net"),
            ("A.ServiceBus.windows.net./", "a.servicebus.windows.net"),
            ("localhost", "localhost"),
            ("localhost:5672", "localhost-5672"),
            ("[fe80::1]:9", "fe80--1-9"),
        ] {
            let (read, _) = parse(&format!("Endpoint=sb://{endpoint}")).unwrap();
            assert_eq!(read.name(), name, "{endpoint}");
        }
    }

    #[test]
    fn web_sockets_go_to_the_port_of_https() {
        let text = "Endpoint=sb://a.servicebus.windows.net/;TransportType=AmqpWebSockets";
        assert_eq!(parse(text).unwrap().0.amqp_port(), 443);
        assert_eq!(parse(&text.replace("WebSockets", "")).unwrap().0.amqp_port(), 5671);
    }

    #[test]
    fn refusal_of_a_connection_string_hides_its_secrets() {
        for text in [
            "Endpoint=sb://a/;SharedAccessKeyName=n",
            "Endpoint=sb://a/;UseDevelopmentEmulator=true",
            "Endpoint=https://a/;SharedAccessKeyName=n;SharedAccessKey=tops3cret",
            "SharedAccessKeyName=n;SharedAccessKey=tops3cret",
            "Endpoint=sb://a/;tops3cret",
            "Endpoint=sb://a/;tops3cret=x",
            "Endpoint=sb://a/;TransportType=tops3cret",
            "Endpoint=sb://a/;SharedAccessKeyName=n;SharedAccessKey=tops3cret;EntityPath=q",
        ] {
            let problem = parse(text).unwrap_err();
            assert!(!problem.contains("tops3cret"), "{problem}");
        }
    }
}
