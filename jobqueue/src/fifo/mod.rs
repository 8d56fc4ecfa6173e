//! FIFO groups: the messages of a key run one at a time, in the order of their sends, on queues that promise no order.
//!
//! Who comes first stands in a *group log* beside the queue: one JSON blob for many keys, changed on condition only. A log has
//! an *entry* for each job that has not ended, in the order in which their sends announced them. The entry comes **before** the
//! message, and what it says of the message can be finished by whoever meets either of them:
//!
//! ```text
//!             announce              confirm                     finish, dead-letter, cancel
//! (no entry) ──────────► announced ─────────► stored ──────────────────────────────────────► (ended, remembered)
//!      │                   │    │ worker meets   ▲ ▲  │
//!      │ worker meets      │    └──its message───┘ │  │ overdue: its message did not come,
//!      │ a message         │                       │  │ though the whole queue went by
//!      │ without entry     └───90 s─► skipped ◄────┼──┘
//!      └───────────────────────────────────────────┴── late confirm, or its message comes after all: to the tail
//!
//! send:    announce(nonce) ─► put message ─► confirm(nonce) ─► acknowledged
//! worker:  lease message ─► first of its group? ─► handler ─► finish (entry out, job into `ended`) ─► delete message
//! cancel:  mark entry ─► delete message by its first receipt ─► entry out, if the mark still stands there
//! ```
//!
//! # What holds
//! - An acknowledged send has an entry that was confirmed under the nonce of this send, or its job has ended.
//! - A message is deleted unrun only if `ended` says that this job (source, id, kind, key, digest of the payload) is done or
//!   cancelled. A message without an entry joins at the tail: late rather than never.
//! - A stored entry blocks its group until its message comes. That it exists is known from its sender, and every delivery
//!   that stands here, every put-back for long, and a running handler every 100 seconds say so again, by moving `due` on.
//!   When `due` is over, those behind it press; if its message has not come while the whole queue had time to go by, it is
//!   *skipped*, not removed. Time alone costs a message its position at worst, and never its run.
//! - One delivery has the turn. The first delivery of a message that is certainly alone needs no note of it; every other one
//!   writes its copy's number and its dequeue count down, and an older one can end nothing. Copies are told apart by a number
//!   in the message, never by the storage's id, which differs between handles. A copy that is not the one in turn waits.
//!
//! # Who finishes what
//! | what happened | who goes on, and how |
//! |---|---|
//! | announce: no answer | the mark of the write tells; at worst an announced entry without message |
//! | sender dies before the put, or the put is refused and retracting fails | the next of the group skips the entry after 90 s |
//! | put: no answer | the entry stays announced, the sender tells *unknown*; the message, if any, makes it stored |
//! | put twice (an answer was lost) | `copies` is set; the first copy that stands has the turn, the other waits, then finds the job ended |
//! | sender pauses for minutes between put and confirm | skipped; confirming moves it to the tail: acknowledged there |
//! | confirm: no answer, or the sender dies | the send was not acknowledged; the message makes the entry stored |
//! | confirm after the job has ended | `ended` knows it: acknowledged, no entry is made |
//! | send again under the same id and payload | joins the entry (or is told that the job is done); another payload is another job |
//! | worker dies before the handler's end | the message comes back, with a greater dequeue count: same entry, same position |
//! | worker dies between finish and delete | the message comes back: `ended` says done, it is deleted |
//! | worker was stopped, another has the turn | its finish is refused: lease lost, nothing is deleted |
//! | dead letter: dies between entry out and copy | the message comes back and joins at the tail |
//! | redrive | the message has no entry: joins at the tail |
//! | canceller dies with its mark set | after 45 s the next deletes the message by its first receipt, and takes the entry out; one that was received keeps it |
//! | cancel while a copy is about | the copy that stands takes the mark away: false; else `ended` says cancelled, and no copy runs |
//! | queue cleared: dies between messages and logs | entries without messages are overdue after a while, and skipped; or clear again |
//! | queue deleted and created again | whoever creates it empties the logs first; otherwise as above |
//!
//! Knows the queue's core and the worker's hook; whoever asks for no order pays nothing.

mod cancel;
mod entry;
mod hook;
mod log;
mod message;
mod parking;
mod send;
mod store;

pub(crate) use entry::EntryRef;
pub(crate) use hook::FifoHook;
pub(crate) use log::Announced;
pub(crate) use message::{InOrder, restamp};
pub(crate) use send::Announcement;
pub(crate) use store::GroupLogs;
