//! The request for a session in the attach of a link, and the session and the end of its lock in the answer.

use std::time::{Duration, SystemTime};

use fe2o3_amqp::Receiver;
use fe2o3_amqp::types::definitions::Fields;
use fe2o3_amqp::types::messaging::Source;
use fe2o3_amqp::types::primitives::{Symbol, Value};

const FILTER: &str = "com.microsoft:session-filter";
const TIMEOUT: &str = "com.microsoft:timeout";
pub(super) const LOCKED_UNTIL: &str = "com.microsoft:locked-until-utc";
/// The ticks of .NET, 100 ns each, at the start of 1970.
const EPOCH: i64 = 621_355_968_000_000_000;

/// Returns the source that stands for the next free session.
pub(super) fn next_free(address: &str) -> Source {
    Source::builder().address(address).add_to_filter_using_legacy_format(FILTER, Value::Null).build()
}

/// Returns the properties of an attach that tell the service how long to wait for a session.
pub(super) fn patience(wait: Duration) -> Fields {
    let mut properties = Fields::new();
    let wait = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
    properties.insert(Symbol::from(TIMEOUT), Value::Uint(wait));
    properties
}

/// Returns the instant that ticks of .NET stand for.
pub(super) fn instant(ticks: i64) -> Option<SystemTime> {
    let micros = u64::try_from(ticks.checked_sub(EPOCH)? / 10).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(micros))
}

/// Returns the id of the session that the answer to an attach names.
pub(super) fn id_of(receiver: &Receiver) -> Option<String> {
    match receiver.source().as_ref()?.filter.as_ref()?.get(&Symbol::from(FILTER))? {
        Value::String(id) => Some(id.clone()),
        Value::Described(described) => match &described.value {
            Value::String(id) => Some(id.clone()),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_instants() {
        assert_eq!(instant(EPOCH), Some(SystemTime::UNIX_EPOCH));
        let second = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        assert_eq!(instant(EPOCH + 10_000_000), Some(second));
        assert_eq!(instant(i64::MIN), None);
        assert_eq!(instant(0), None);
    }
}
