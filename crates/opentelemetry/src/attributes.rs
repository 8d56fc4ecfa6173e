//! Attributes that spans and metrics share.

use std::iter;
use std::ops::Deref;
use std::sync::Arc;

use jobqueue::__internals::{is_hidden, visible};
use jobqueue::{QueueName, Storage};
use opentelemetry::{KeyValue, StringValue};

use crate::conventions as names;

/// The most attributes of a record of a metric.
const MAX_ATTRIBUTES: usize = 8;

/// The attributes that all spans and metrics of a storage have, which tell its queues from the queues of
/// another storage. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct StorageAttributes {
    name: Arc<str>,
    all: Arc<[KeyValue]>,
}

impl StorageAttributes {
    pub(crate) fn of(storage: &Storage) -> Self {
        let name = Arc::<str>::from(storage.description());
        let system = if name.starts_with("servicebus") { names::SERVICE_BUS } else { names::JOBQUEUE };
        let (host, port) = server(&name).unzip();
        let host = host.map(|host| KeyValue::new(names::SERVER_ADDRESS, host.to_owned()));
        let port = port.flatten().map(|port| KeyValue::new(names::SERVER_PORT, i64::from(port)));
        let named =
            [KeyValue::new(names::SYSTEM, system), KeyValue::new(names::STORAGE_NAME, Arc::clone(&name))];
        Self { all: named.into_iter().chain(host).chain(port).collect(), name }
    }

    /// Returns the description of the storage.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the attributes in their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = KeyValue> {
        self.all.iter().cloned()
    }

    /// Returns these attributes with others.
    pub(crate) fn with(&self, others: impl IntoIterator<Item = KeyValue>) -> Attributes {
        self.iter().chain(others).collect()
    }

    /// Returns these attributes with the name of a queue, and with others.
    pub(crate) fn with_queue(
        &self,
        queue: &QueueName,
        others: impl IntoIterator<Item = KeyValue>,
    ) -> Attributes {
        self.with(iter::once(destination(queue)).chain(others))
    }
}

/// Returns the host and the port in the description of a storage. `None` without a server or with several,
/// and for an IPv6 address, because a description does not show where it ends.
fn server(description: &str) -> Option<(&str, Option<u16>)> {
    let (adapter, place) = description.split_once(':')?;
    let (host, port) = match adapter {
        "servicebus" => (place.split(' ').next()?, None),
        "postgres" => {
            let server = place.split('/').next()?;
            match server.rsplit_once(':') {
                Some((host, port)) => (host, Some(port.parse().ok()?)),
                None => (server, None),
            }
        }
        _ => return None,
    };
    (!host.is_empty() && !host.contains([',', ':'])).then_some((host, port))
}

/// The attributes of one record, on the stack because each job has several records.
#[derive(Debug)]
pub(crate) struct Attributes {
    all: [KeyValue; MAX_ATTRIBUTES],
    count: usize,
}

impl FromIterator<KeyValue> for Attributes {
    fn from_iter<I: IntoIterator<Item = KeyValue>>(attributes: I) -> Self {
        let (mut attributes, mut count) = (attributes.into_iter().fuse(), 0);
        let all = std::array::from_fn(|_| match attributes.next() {
            Some(attribute) => {
                count += 1;
                attribute
            }
            None => KeyValue::new("", false),
        });
        debug_assert!(attributes.next().is_none(), "more attributes than {MAX_ATTRIBUTES}");
        Self { all, count }
    }
}

impl Deref for Attributes {
    type Target = [KeyValue];

    fn deref(&self) -> &[KeyValue] {
        &self.all[..self.count]
    }
}

pub(crate) fn destination(queue: &QueueName) -> KeyValue {
    KeyValue::new(names::DESTINATION, Arc::<str>::from(queue))
}

pub(crate) fn error_type(code: &'static str) -> KeyValue {
    KeyValue::new(names::ERROR_TYPE, code)
}

pub(crate) fn outcome_of(name: &'static str) -> KeyValue {
    KeyValue::new(names::OUTCOME, name)
}

/// Returns an id without control characters, because line breaks from a sender would forge lines where spans
/// are printed.
pub(crate) fn plain(id: &str) -> StringValue {
    visible(id, &[]).into()
}

/// Like [`plain`], but does not copy an id that has no control characters.
pub(crate) fn plain_shared(id: &Arc<str>) -> StringValue {
    if id.contains(is_hidden) { plain(id) } else { Arc::clone(id).into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_nothing_else() {
        assert_eq!(
            plain("01890a5d-ac96-774b-bcce-b302099a8057 ä").as_str(),
            "01890a5d-ac96-774b-bcce-b302099a8057 ä"
        );
        assert_eq!(plain_shared(&Arc::from("a\nb")).as_str(), "a\\nb");
        assert_eq!(plain("a\nb\u{1b}[31m\u{202e}").as_str(), "a\\nb\\u{1b}[31m\\u{202e}");
    }

    #[test]
    fn server_is_known_where_a_description_names_exactly_one() {
        for (description, expected) in [
            ("postgres:db.example:5432/shop/jobqueue", Some(("db.example", Some(5432)))),
            ("postgres:db.example/shop/jobqueue + blobs of azure:shop", Some(("db.example", None))),
            ("postgres:one,two:5432,5433/shop/jobqueue", None),
            ("postgres:one,two/shop/jobqueue", None),
            ("postgres:/run/postgresql:5432/shop/jobqueue", None),
            ("postgres:::1:5432/shop/jobqueue", None),
            ("servicebus:shop.example + blobs of sqlite:jobs.db", Some(("shop.example", None))),
            ("servicebus:shop.example", Some(("shop.example", None))),
            ("sharded over 2 accounts, postgres:db.example:5432/shop/jobqueue", None),
            ("azure:shop", None),
            ("sqlite:/data/jobs.db", None),
            ("memory", None),
        ] {
            assert_eq!(server(description), expected, "{description}");
        }
    }

    #[test]
    fn record_has_its_attributes_and_no_others() {
        let storage = StorageAttributes::of(&Storage::memory());
        let queue = QueueName::new("orders").unwrap();
        let attributes = storage.with_queue(&queue, Some(error_type("storage")));
        let keys: Vec<&str> = attributes.iter().map(|attribute| attribute.key.as_str()).collect();
        let expected = [names::SYSTEM, names::STORAGE_NAME, names::DESTINATION, names::ERROR_TYPE];
        assert_eq!(keys, expected);
    }
}
