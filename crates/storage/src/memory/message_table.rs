//! The messages of one queue, ordered by the time at which they become visible.
//!
//! The table is plain data: it takes the time as an argument, and knows no locks and no names.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, SystemTime};

use crate::runtime::Runtime;
use crate::{
    ExpiredReceipt, LeasedMessage, MessageId, MessagePage, MessageRef, MessageState, PeekedMessage,
    PopReceipt, PutMessage, PutOutcome, StateCounts, StoreErrorKind, Updated,
};

/// The messages of one queue. Every method except [`forget_expired`](Self::forget_expired) expects that
/// expired messages have already been removed.
#[derive(Debug, Default)]
pub(super) struct MessageTable {
    runtime: Runtime,
    rows: BTreeMap<u64, MessageRow>,
    by_id: HashMap<MessageId, u64>,
    /// All messages except those that wait for another message of their group.
    by_visibility: BTreeSet<(SystemTime, u64)>,
    by_expiry: BTreeSet<(SystemTime, u64)>,
    /// The messages of each group, in the order of their puts. Only the first can be received.
    groups: BTreeMap<String, BTreeSet<u64>>,
    last: u64,
}

#[derive(Debug)]
struct MessageRow {
    message: MessageRef,
    /// The time until which the receipt is valid; `None` for the receipt of a put, which is valid until the
    /// first get.
    good_until: Option<SystemTime>,
    text: String,
    visible_at: SystemTime,
    inserted: SystemTime,
    expires: Option<SystemTime>,
    dequeue_count: u32,
    /// True if the holder of the last lease has put the message back.
    put_back: bool,
    group: Option<String>,
}

impl MessageRow {
    /// Returns whether the delay of its put is not over.
    fn is_delayed(&self, now: SystemTime) -> bool {
        self.visible_at > now && self.good_until.is_none()
    }
}

impl MessageTable {
    pub(super) fn new(runtime: Runtime) -> Self {
        Self { runtime, ..Self::default() }
    }

    pub(super) fn forget_expired(&mut self, now: SystemTime) {
        while let Some(&(expires, number)) = self.by_expiry.first() {
            if expires > now {
                break;
            }
            self.remove(number);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn put(&mut self, now: SystemTime, message: PutMessage) -> PutOutcome {
        self.last += 1;
        let row = MessageRow {
            message: MessageRef {
                id: MessageId::new(self.runtime.uuid_v4().to_string()),
                receipt: new_receipt(&self.runtime),
            },
            good_until: None,
            text: message.text,
            visible_at: now + message.visibility_delay,
            inserted: now,
            expires: message.ttl.and_then(|ttl| now.checked_add(ttl)),
            dequeue_count: 0,
            put_back: false,
            group: message.group,
        };
        let outcome = PutOutcome {
            message: row.message.clone(),
            inserted: now,
            expires: row.expires,
            next_visible: row.visible_at,
        };
        self.by_id.insert(row.message.id.clone(), self.last);
        let of_group = row.group.clone().map(|group| self.groups.entry(group).or_default());
        let is_first = of_group.is_none_or(|numbers| numbers.insert(self.last) && numbers.len() == 1);
        if is_first {
            self.by_visibility.insert((row.visible_at, self.last));
        }
        if let Some(expires) = row.expires {
            self.by_expiry.insert((expires, self.last));
        }
        self.rows.insert(self.last, row);
        outcome
    }

    pub(super) fn get(&mut self, now: SystemTime, count: u32, visibility: Duration) -> Vec<LeasedMessage> {
        let numbers = self.visible(now, count);
        numbers.into_iter().filter_map(|number| self.lease(number, now + visibility)).collect()
    }

    pub(super) fn peek(&self, now: SystemTime, count: u32) -> Vec<PeekedMessage> {
        let waiting = self.groups.values().flat_map(|numbers| numbers.iter().skip(1).copied());
        let numbers = self.visible(now, count).into_iter().chain(waiting).take(count as usize);
        let rows = numbers.filter_map(|number| self.rows.get(&number));
        rows.map(peeked).collect()
    }

    pub(super) fn counts(&self, now: SystemTime) -> StateCounts {
        let mut counts = StateCounts { now: Some(now), ..StateCounts::default() };
        let held_up =
            self.rows.iter().filter(|(number, row)| !row.is_delayed(now) && self.waits(**number, row));
        counts.oldest_held_up = held_up.map(|(_, row)| row.inserted).min();
        for (number, row) in &self.rows {
            *match self.state(now, *number, row) {
                MessageState::Waiting => &mut counts.waiting,
                MessageState::Delayed => &mut counts.delayed,
                MessageState::BackingOff => {
                    counts.oldest_backing_off =
                        counts.oldest_backing_off.into_iter().chain([row.inserted]).min();
                    &mut counts.backing_off
                }
                MessageState::Running => &mut counts.running,
            } += 1;
        }
        counts
    }

    fn state(&self, now: SystemTime, number: u64, row: &MessageRow) -> MessageState {
        match row {
            row if row.visible_at <= now || self.waits(number, row) => MessageState::Waiting,
            row if row.is_delayed(now) => MessageState::Delayed,
            row if row.put_back => MessageState::BackingOff,
            _ => MessageState::Running,
        }
    }

    /// Returns up to `count` messages of a state after a place.
    pub(super) fn page(
        &self,
        now: SystemTime,
        state: MessageState,
        behind: Option<PagePlace>,
        count: usize,
    ) -> MessagePage {
        let of_state = self.rows.iter().filter(|(number, row)| self.state(now, **number, row) == state);
        let places = of_state.map(|(number, row)| {
            let waits_for_group = self.waits(*number, row);
            // The group decides the order of a waiting message; its delay does not matter.
            let visible_at = if waits_for_group { SystemTime::UNIX_EPOCH } else { row.visible_at };
            PagePlace { waits_for_group, visible_at, number: *number }
        });
        let mut places: Vec<_> = places.filter(|place| behind.is_none_or(|behind| *place > behind)).collect();
        places.sort_unstable();
        places.truncate(count);
        let messages = places.iter().filter_map(|place| self.rows.get(&place.number));
        let messages = messages.map(|row| (peeked(row), row.visible_at)).collect();
        let next = places.last().copied().filter(|_| places.len() == count);
        let waiting_for_group = places.iter().filter(|place| place.waits_for_group).count();
        MessagePage::new(messages)
            .with_waiting_for_group(waiting_for_group)
            .with_next(next.map(PagePlace::text))
    }

    /// Makes a delayed or put-back message visible. Returns false if the message was neither. The receipt of
    /// a message that was put back becomes invalid.
    pub(super) fn make_visible(&mut self, now: SystemTime, message: &MessageId) -> bool {
        let Some(&number) = self.by_id.get(message) else { return false };
        let Some(row) = self.rows.get_mut(&number) else { return false };
        let is_leased = row.good_until.is_some() && !row.put_back;
        if row.visible_at <= now || is_leased {
            return false;
        }
        if self.by_visibility.remove(&(row.visible_at, number)) {
            self.by_visibility.insert((now, number));
        }
        row.visible_at = now;
        row.good_until = row.good_until.map(|_| now);
        true
    }

    /// Returns the time until the next hidden message becomes visible; skips messages that expire before.
    pub(super) fn next_visible_in(&self, now: SystemTime) -> Option<Duration> {
        let later = self.by_visibility.range((now, u64::MAX)..);
        let lives = |&&(at, number): &&(SystemTime, u64)| {
            self.rows.get(&number).is_some_and(|row| row.expires.is_none_or(|expires| expires > at))
        };
        later.into_iter().find(lives).and_then(|(at, _)| at.duration_since(now).ok())
    }

    /// Checks the receipt of `message`; returns the time at which the message expires.
    pub(super) fn authorize(
        &self,
        now: SystemTime,
        message: &MessageRef,
        expired: ExpiredReceipt,
    ) -> Result<Option<SystemTime>, StoreErrorKind> {
        let row = self.by_id.get(&message.id).and_then(|number| self.rows.get(number));
        let row = row.ok_or(StoreErrorKind::MessageNotFound)?;
        if row.message.receipt != message.receipt {
            return Err(StoreErrorKind::PopReceiptMismatch);
        }
        if expired == ExpiredReceipt::Refuse && row.good_until.is_some_and(|until| until <= now) {
            return Err(StoreErrorKind::LeaseExpired);
        }
        Ok(row.expires)
    }

    pub(super) fn hidden_until(&self, message: &MessageRef) -> Option<SystemTime> {
        let row = self.by_id.get(&message.id).and_then(|number| self.rows.get(number))?;
        Some(row.visible_at)
    }

    /// Changes a message after [`authorize`](Self::authorize).
    pub(super) fn update(
        &mut self,
        message: &MessageRef,
        next_visible: SystemTime,
        text: Option<String>,
        put_back: bool,
    ) -> Result<Updated, StoreErrorKind> {
        let number = self.by_id.get(&message.id).ok_or(StoreErrorKind::MessageNotFound)?;
        let row = self.rows.get_mut(number).ok_or(StoreErrorKind::MessageNotFound)?;
        hide(&mut self.by_visibility, *number, row, next_visible);
        row.message.receipt = new_receipt(&self.runtime);
        row.put_back = put_back;
        if let Some(text) = text {
            row.text = text;
        }
        Ok(Updated { receipt: row.message.receipt.clone(), next_visible, granted: None })
    }

    /// Deletes a message after [`authorize`](Self::authorize). Returns whether it belonged to a group, whose
    /// next message may now be receivable.
    pub(super) fn delete(&mut self, message: &MessageRef) -> bool {
        let Some(&number) = self.by_id.get(&message.id) else { return false };
        let is_of_group = self.rows.get(&number).is_some_and(|row| row.group.is_some());
        self.remove(number);
        is_of_group
    }

    fn visible(&self, now: SystemTime, count: u32) -> Vec<u64> {
        let visible = self.by_visibility.range(..=(now, u64::MAX)).take(count as usize);
        visible.map(|&(_, number)| number).collect()
    }

    fn lease(&mut self, number: u64, until: SystemTime) -> Option<LeasedMessage> {
        let row = self.rows.get_mut(&number)?;
        hide(&mut self.by_visibility, number, row, until);
        row.message.receipt = new_receipt(&self.runtime);
        row.dequeue_count = row.dequeue_count.saturating_add(1);
        row.put_back = false;
        Some(LeasedMessage {
            message: row.message.clone(),
            text: Ok(row.text.clone()),
            dequeue_count: row.dequeue_count,
            inserted: row.inserted,
            expires: row.expires,
            next_visible: until,
            granted: None,
            dead: None,
            group: None,
            original_id: None,
        })
    }

    fn remove(&mut self, number: u64) {
        if let Some(row) = self.rows.remove(&number) {
            self.by_id.remove(&row.message.id);
            self.by_visibility.remove(&(row.visible_at, number));
            if let Some(expires) = row.expires {
                self.by_expiry.remove(&(expires, number));
            }
            if let Some(group) = row.group {
                self.leave(&group, number);
            }
        }
    }

    /// Removes a message from its group. If it was the first, the next message can be received.
    fn leave(&mut self, group: &str, number: u64) {
        let Some(numbers) = self.groups.get_mut(group) else { return };
        numbers.remove(&number);
        match numbers.first() {
            None => {
                self.groups.remove(group);
            }
            Some(first) => {
                let visible_at = self.rows.get(first).map(|row| (row.visible_at, *first));
                self.by_visibility.extend(visible_at);
            }
        }
    }

    /// Returns whether a message waits for another message of its group.
    fn waits(&self, number: u64, row: &MessageRow) -> bool {
        let numbers = row.group.as_ref().and_then(|group| self.groups.get(group));
        numbers.is_some_and(|numbers| numbers.first() != Some(&number))
    }
}

/// The place of a message in the order of pages: first the visible and hidden messages by time, then the
/// messages that wait for their group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PagePlace {
    waits_for_group: bool,
    visible_at: SystemTime,
    number: u64,
}

impl PagePlace {
    pub(super) fn text(self) -> String {
        let since = self.visible_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        format!("{}.{}.{}", u8::from(self.waits_for_group), since.as_nanos(), self.number)
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let waits_for_group = parts.next()? == "1";
        let since = Duration::from_nanos(parts.next()?.parse().ok()?);
        let visible_at = SystemTime::UNIX_EPOCH.checked_add(since)?;
        let number = parts.next()?.parse().ok()?;
        parts.next().is_none().then_some(Self { waits_for_group, visible_at, number })
    }
}

fn peeked(row: &MessageRow) -> PeekedMessage {
    PeekedMessage {
        id: row.message.id.clone(),
        text: Ok(row.text.clone()),
        dequeue_count: row.dequeue_count,
        inserted: row.inserted,
        expires: row.expires,
        dead: None,
        original_id: None,
    }
}

/// Hides a message until `visible_at`, even if it waits for its group. Its next receipt is valid until then.
fn hide(order: &mut BTreeSet<(SystemTime, u64)>, number: u64, row: &mut MessageRow, visible_at: SystemTime) {
    if order.remove(&(row.visible_at, number)) {
        order.insert((visible_at, number));
    }
    row.visible_at = visible_at;
    row.good_until = Some(visible_at);
}

/// Returns a receipt of 128 random bits, so that receipts cannot be guessed from each other.
fn new_receipt(runtime: &Runtime) -> PopReceipt {
    PopReceipt::new(format!("{:032x}", runtime.random_u128()))
}
