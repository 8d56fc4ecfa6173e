//! The naive model with which the file is compared.

use std::collections::BTreeMap;

use jobqueue_storage::{ExpiredReceipt, MessageId, MessageRef, MessageState, PopReceipt, StoreErrorKind};

#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) order: u64,
    pub(super) queue: usize,
    pub(super) visible_at: i64,
    pub(super) expires_at: Option<i64>,
    pub(super) dequeue_count: u32,
    /// The time until which the receipt is valid; `None` for the receipt of a put.
    pub(super) good_until: Option<i64>,
    pub(super) put_back: bool,
    pub(super) group: Option<String>,
    pub(super) receipt: PopReceipt,
}

/// All messages of the file by their ids, with only the promises of the port.
#[derive(Clone, Default)]
pub(super) struct Model {
    pub(super) messages: BTreeMap<MessageId, Message>,
    pub(super) puts: u64,
}

impl Model {
    pub(super) fn alive(&self, queue: usize, now: i64) -> impl Iterator<Item = (&MessageId, &Message)> {
        let is_alive = move |one: &Message| one.queue == queue && one.expires_at.is_none_or(|end| end > now);
        self.messages.iter().filter(move |(_, one)| is_alive(one))
    }

    pub(super) fn waits(&self, message: &Message) -> bool {
        let is_before = |one: &Message| {
            one.queue == message.queue && one.group == message.group && one.order < message.order
        };
        message.group.is_some() && self.messages.values().any(is_before)
    }

    pub(super) fn state(&self, message: &Message, now: i64) -> MessageState {
        match message {
            one if one.visible_at <= now || self.waits(one) => MessageState::Waiting,
            one if one.good_until.is_none() => MessageState::Delayed,
            one if one.put_back => MessageState::BackingOff,
            _ => MessageState::Running,
        }
    }

    /// Returns the ids of the messages of a state in the order of a page.
    pub(super) fn page(&self, queue: usize, state: MessageState, now: i64) -> Vec<MessageId> {
        let of_state = self.alive(queue, now).filter(|(_, one)| self.state(one, now) == state);
        let place = |one: &Message| {
            if self.waits(one) {
                (true, 0, one.group.clone(), one.order)
            } else {
                (false, one.visible_at, None, one.order)
            }
        };
        let mut found: Vec<_> = of_state.map(|(id, one)| (place(one), id.clone())).collect();
        found.sort();
        found.into_iter().map(|(_, id)| id).collect()
    }

    pub(super) fn find(
        &mut self,
        queue: usize,
        message: &MessageRef,
        late: ExpiredReceipt,
        now: i64,
    ) -> Result<&mut Message, StoreErrorKind> {
        let found = self.messages.get_mut(&message.id).filter(|one| one.queue == queue);
        let found = found
            .filter(|one| one.expires_at.is_none_or(|end| end > now))
            .ok_or(StoreErrorKind::MessageNotFound)?;
        if found.receipt != message.receipt {
            return Err(StoreErrorKind::PopReceiptMismatch);
        }
        if late == ExpiredReceipt::Refuse && found.good_until.is_some_and(|until| until <= now) {
            return Err(StoreErrorKind::LeaseExpired);
        }
        Ok(found)
    }
}
