//! Planted faults.

use serde_json::Value;

use super::control::Control;

/// A fault that the emulator applies to calls of one operation: it drops the answer, delays or holds it,
/// refuses the call, or ends the link, session or connection. `servicebus/README.md` lists operations,
/// actions and fields. It stays planned until it has occurred as often as it should, also when this value is
/// dropped.
#[derive(Debug)]
pub struct Fault<'a> {
    control: &'a Control,
    id: u64,
}

impl<'a> Fault<'a> {
    pub(super) fn plant(control: &'a Control, fields: &Value) -> Self {
        let id = control.call("POST", "faults", fields)["id"].as_u64().expect("a number");
        Self { control, id }
    }

    /// Waits until the fault has struck at least `count` times; returns how often it has struck. It blocks
    /// for at most 30 seconds.
    ///
    /// # Panics
    /// When the emulator has ended.
    pub fn wait(&self, count: u64) -> u64 {
        let state = self.control.get(&format!("faults/{}?hits={count}&wait=30000", self.id));
        state["hits"].as_u64().expect("a number")
    }

    /// Returns how often the fault has struck.
    ///
    /// # Panics
    /// When the emulator has ended.
    pub fn hits(&self) -> u64 {
        self.wait(0)
    }

    /// Releases the calls that the fault holds.
    ///
    /// # Panics
    /// When the emulator has ended.
    pub fn release(&self) {
        self.control.call("POST", &format!("faults/{}/release", self.id), &Value::Null);
    }

    /// Removes the fault, and releases the calls that it holds.
    ///
    /// # Panics
    /// When the emulator has ended.
    pub fn remove(self) {
        self.control.call("DELETE", &format!("faults/{}", self.id), &Value::Null);
    }
}
