//! The metadata of a trigger.

use std::collections::HashMap;
use std::time::Duration;

use tonic::Status;

use super::generated::ScaledObjectRef;
use crate::scale::Target;

/// The metadata of a trigger.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) queue: String,
    pub(super) target: Target,
}

impl Asked {
    pub(super) fn of(object: &ScaledObjectRef, default: Target) -> Result<Self, Status> {
        let metadata = &object.scaler_metadata;
        let Some(queue) = metadata.get("queue").filter(|queue| !queue.is_empty()) else {
            return Err(Status::invalid_argument("the metadata of the trigger has no `queue`"));
        };
        let mut target = default;
        if let Some(seconds) = number(metadata, "targetDelay")? {
            let delay = Duration::try_from_secs_f64(seconds);
            target = target.delay(delay.map_err(|_| wrong("targetDelay"))?);
        }
        if let Some(slots) = number(metadata, "slotsPerWorker")? {
            target = target.slots_per_worker(slots);
        }
        Ok(Self { queue: queue.clone(), target })
    }

    /// Returns the name of the metric.
    pub(super) fn metric(&self) -> String {
        format!("jobqueue-{}", self.queue)
    }
}

/// Returns a number above 0 from the metadata.
fn number(metadata: &HashMap<String, String>, name: &str) -> Result<Option<f64>, Status> {
    let Some(text) = metadata.get(name) else { return Ok(None) };
    let number = text.trim().parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.map(Some).ok_or_else(|| wrong(name))
}

fn wrong(name: &str) -> Status {
    Status::invalid_argument(format!("`{name}` in the metadata of the trigger is no number above 0"))
}
