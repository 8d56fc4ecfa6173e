//! FIFO groups: the messages of a key run one at a time, in the order of their sends, on queues that promise
//! no order.
//!
//! A *group log* holds the order: one JSON blob for many keys, which is only changed on condition. A log has
//! an *entry* for each job that has not ended, in the order in which the sends announced them. The entry is
//! written **before** the message, and a process that finds only one of them can complete the other:
//!
//! ```text
//!             announce              confirm               finish, dead-letter, cancel
//! (no entry) ──────────► announced ─────────► stored ────────────────────────────────► (ended, remembered)
//!      │                   │    │ worker meets   ▲ ▲  │
//!      │ worker meets      │    └──its message───┘ │  │ overdue: its message did not arrive
//!      │ a message         │                       │  │ in a whole round of the queue
//!      │ without entry     └──120 s─► skipped ◄────┼──┘
//!      └───────────────────────────────────────────┴── late confirmation or message: moves to the tail
//!
//! send:    announce(nonce) ─► put message ─► confirm(nonce) ─► acknowledged
//! worker:  lease ─► first of its group? ─► handler ─► finish (entry out, job into `ended`) ─► delete message
//! cancel:  mark entry ─► delete message by its first receipt ─► entry out, if the mark is still there
//! ```
//!
//! A key with many jobs has its first entries in the *head* of the log, and the others in *pages*, 32 in
//! each. So a write has a few kilobytes at any backlog. A send writes into the last page, and its message
//! names that page: a delivery whose page is linked waits, and reads nothing. When few entries are left in
//! the head, a delivery takes over the first page:
//!
//! ```text
//! send:    write the entries into a new page ─► link the page to the head ─► put message
//! worker:  close the page, so that it stays as it is ─► add its entries to the head, unlink it ─► delete it
//! ```
//!
//! # Invariants
//! - An acknowledged send has an entry that was confirmed under the nonce of this send, or its job has ended.
//! - A message is deleted without having run only if `ended` says that its job (source, id and key) is done
//!   or cancelled. A message without an entry joins at the tail: late rather than never.
//! - A stored entry blocks its group until its message arrives. The sender first confirms that the message
//!   exists. Later confirmations move `due` on: by every delivery that finds its position here, by every
//!   put-back for a long time, and every 100 seconds by the delivery that has the turn, also while it waits
//!   for a slot. Once `due` has passed, each waiting delivery marks every overdue entry ahead of it. A
//!   message is given up once every other message of the queue could have been delivered since: its entry is
//!   *skipped*, not removed. Time alone costs an acknowledged message neither its position nor its run.
//! - A delivery that cannot confirm its turn loses its lease before the jobs behind it may give its message
//!   up.
//! - A page takes no further entries once entries count behind it, however few are left in it. A page is
//!   sealed when it refuses a job for the first time, so that the next page may follow. It is also sealed
//!   before a send is acknowledged whose entry was moved to the tail, behind the pages. Otherwise a process
//!   with an older head would enter a later send there, before jobs that were acknowledged.
//! - An entry of a page counts while the page is linked and not closed; a change that finds its page closed
//!   or gone is made in the head. A page is linked once: its number is one more than the last page's, or
//!   random if there is none.
//! - One delivery has the turn. The first delivery of a message that certainly has no copies needs no record
//!   of it, if the storage counts all deliveries. Every other delivery records its copy number, its dequeue
//!   count and, where deliveries may not be counted, the end of its lock; an older delivery can then end
//!   nothing. A number in the message identifies the copy. Messages of other producers have no number: the
//!   storage's id identifies them, which may differ between handles. Under another id the same message counts
//!   as another copy, and comes late. A copy without the turn waits.
//!
//! # Recovery
//! | what happened | who continues, and how |
//! |---|---|
//! | announce: no answer for 30 s | the send is refused; at worst, an announced entry without message remains |
//! | announce: an answer was lost | the mark of the write shows whether it was applied; at worst, an announced entry without message remains |
//! | sender dies before the put, or the put is refused and retracting fails | the next job of the group skips the entry after 120 s |
//! | put: no answer | the entry stays announced, the sender reports *unknown*; the message, if there is one, makes the entry stored |
//! | put twice (an answer was lost) | `copies` is set; the first copy delivered has the turn, the other waits, then finds the job ended |
//! | sender pauses for minutes between put and confirm | skipped; the confirmation moves the entry to the tail and acknowledges it there |
//! | 120 s pass before a list with several jobs of the key is confirmed | a later job may have skipped the entry: the send is *unknown* |
//! | confirm: no answer, or the sender dies | the send was not acknowledged; the message makes the entry stored |
//! | confirm after the job has ended | `ended` knows the job: acknowledged, no entry is made |
//! | send again under the same id and key | joins the entry, or learns that the job is done |
//! | worker dies before the handler returns | the message is delivered again, with a greater dequeue count: same entry, same position |
//! | the worker's connection breaks, and the service counts no delivery | the next delivery has the same dequeue count and a later lock: it reads the log, and records its turn |
//! | worker dies between finish and delete | the message is delivered again: `ended` says done, the worker deletes it |
//! | worker was stopped, another has the turn | its finish is refused: lease lost, nothing is deleted |
//! | dead letter: worker dies between removing the entry and copying the message | the message is delivered again and joins at the tail |
//! | redrive | the message has no entry: joins at the tail |
//! | canceller dies with its mark set | after 45 s the next job takes the mark over, deletes the message by its first receipt, and removes the entry; a job that was received keeps it |
//! | canceller dies after its deletion | the next job or a repeated cancellation finds the mark and no message: while the message would certainly be hidden, it removes the entry |
//! | job sent again while the mark of a canceller stands | the mark is kept for the first message: as above, and once that message is deleted the messages sent since may run |
//! | canceller loses its mark to another canceller, or to a repeated send of a job with copies | it reports *unknown* unless the log says how the job ended, or that a delivery has the turn |
//! | cancel while a second copy exists | a delivered copy removes the mark: the job is not cancelled; otherwise `ended` says cancelled, and no copy runs |
//! | page written: sender dies before it is linked | its entries do not count, and no message names them; the next sender links it, or it stays unread |
//! | page closed: process dies before the head has its entries | the next delivery, send or change that finds it closed takes it over |
//! | page taken over: process dies before it is deleted | it stays, closed, and is not read |
//! | job sent again while its entry is in a page | a second entry; they become one when the head has both, or the second is dropped if the job is done |
//! | page missing (it was deleted by hand) | taken over as an empty one; its messages join at the tail |
//! | queue cleared | the logs are read before its messages are deleted; then what was read is removed, and sends since then keep their entries. Entries whose messages were deleted become overdue and are skipped |
//! | queue cleared: process dies between messages and logs | entries without messages become overdue and are skipped; or clear the queue again |
//! | queue deleted and created again | the creator clears the logs first; otherwise as above |
//!
//! # Files
//! - `log` and the folder `log/`: one document as plain data, and every change of it. `entry`: its entries.
//!   No I/O.
//! - `log_blob`: one document in its blob: the cached version, and when it is written or read.
//! - `store`: the documents of a queue, by key; `pages`: changes that concern several documents, and the
//!   search for the document that has an entry.
//! - `clock`: the storage's clock. Processes compare the times in a log, and their own clocks may differ.
//! - `send` (announce, confirm, retract) and `cancel` for senders; [`order`](crate::order) and
//!   `delivery/order_position` for workers.
//! - `message`: the attributes of a message that name its place.
//! - `all_logs`: reads and removes all documents, for operators and for `clear`; `overview`: what operators
//!   see of them.
//!
//! This module knows storages and events, but no queue and no worker. The worker's hook is in
//! [`order`](crate::order). Messages without order cost nothing here.

mod all_logs;
mod cancel;
mod clock;
mod entry;
mod log;
mod log_blob;
mod message;
mod overview;
mod pages;
mod send;
mod store;

pub(crate) use crate::envelope::headers::order::IN_ORDER;
pub(crate) use cancel::{Cancellation, cancel_message};
pub(crate) use entry::{Announcement, EndState, EntryRef};
pub(crate) use log::{Announced, GRACE, OverdueWait, Position, SEND_BUDGET};
pub(crate) use log_blob::LogBlob;
pub use message::is_in_order;
pub(crate) use message::{InOrder, forget_message, renumber, restamp, stamp_page};
pub use overview::{EntryRecord, GroupRecord, group_of, groups, names_in_order, position_names};
pub(crate) use send::{Confirmation, announce, confirm, retract};
pub(crate) use store::{GroupLogs, Progress, superseded};
