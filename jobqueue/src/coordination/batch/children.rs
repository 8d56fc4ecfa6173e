//! Sends the children of a batch, for the requests of `child_requests`. Each step can be repeated: the
//! records of a chunk are announced, then its messages are put, then the cursor moves.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::ledger::Ledger;
use super::names::{BATCH, BatchId, COPY, GROUP_SIZE, INDEX, MAX_CHILDREN, ON_DEAD, TOKEN, token};
use super::roster::{ChildAnnouncement, ChildRecord, announce_children};
use super::{Batch, OnDeadLetters, source};
use crate::error::{Error, ErrorKind};
use crate::json_blob::Known;
use crate::message::QueueMessage;
use crate::queue_core::{QueueCore, QueueOf};
use crate::send;
use crate::send::{Draft, Prepared, Purpose, Render, SendItem, SendOptions};

/// The number of children that are sent together, with one update of the cursor.
pub(super) const CHUNK: usize = 100;

impl Batch {
    /// Opens the queue of the children (`queue`, or the queue of their type) and waits until it is shorter
    /// than `below`, if that is set. Returns the queue, and the secret of the batch.
    pub(super) fn ready_to_send(
        &mut self,
        queue: Option<Arc<QueueCore>>,
        own: QueueOf<'static>,
        below: Option<u64>,
    ) -> BoxFuture<'_, Result<(Arc<QueueCore>, String), Error>> {
        Box::pin(async move {
            let core = match queue {
                Some(core) if core.storage.is_other_than(&self.storage) => {
                    let text = format!(
                        "the queue `{}` is in another storage than the batch; send the children to a queue of the batch's own storage, whose workers can continue it",
                        core.name
                    );
                    return Err(Error::new(ErrorKind::Invalid, text));
                }
                Some(core) => core,
                None => self.core(own).await?,
            };
            send::ready_to_send(&core, below).await?;
            Ok((core, self.secret().await?))
        })
    }

    pub(super) fn drafts<M: QueueMessage>(
        &self,
        secret: &str,
        common: &SendOptions,
        children: impl IntoIterator<Item = impl SendItem<M>>,
    ) -> Result<Vec<(ChildRecord, Draft)>, Error> {
        let draft = |(index, item): (u64, _)| {
            let (message, own) = SendItem::parts(&item);
            let options = own.map_or_else(|| common.clone(), |own| own.clone().or(common.clone()));
            let id = options.identity().0.map(str::to_owned);
            let draft = Draft::new(message, self.child_options(index, secret, options))?;
            Ok((ChildRecord::new::<M>(id.as_deref(), draft.key(), draft.data()), draft))
        };
        (self.next..).zip(children).map(draft).collect()
    }

    /// Sends the next children together.
    pub(super) fn send_chunk<'b>(
        &'b mut self,
        core: &'b QueueCore,
        chunk: Vec<(ChildRecord, Draft)>,
        render: Render,
    ) -> BoxFuture<'b, Result<(), Error>> {
        Box::pin(async move {
            let (records, drafts): (Vec<_>, Vec<_>) = chunk.into_iter().unzip();
            let new = (self.next..).zip(drafts).filter(|(index, _)| *index >= self.sent_before);
            let prepare = |(index, draft)| Ok((index, render(core, draft, Purpose::OneOfMany)?));
            // Invalid children are refused before any child is announced.
            let prepared: Vec<_> = new.map(prepare).collect::<Result<_, Error>>()?;
            let (announced_now, end) = self.announce(&records).await?;
            if !prepared.is_empty() {
                let mark = |(index, mut child): (u64, Prepared)| {
                    let marked = if index < announced_now { child.mark_copy() } else { Ok(()) };
                    (index, marked.map(|()| child))
                };
                let (indices, prepared): (Vec<_>, Vec<_>) = prepared.into_iter().map(mark).unzip();
                for (index, sent) in indices.into_iter().zip(send::dispatch_all(core, prepared).await) {
                    if sent?.was_done() {
                        self.ledger().end_elsewhere(index).await?;
                    }
                }
                self.ledger().replace(&self.id.blob("cursor")?, &end).await?;
            }
            self.next = end;
            Ok(())
        })
    }

    /// Announces the next children. Returns the number of the first child that no earlier start has
    /// announced, and the number after the last child.
    async fn announce(&mut self, children: &[ChildRecord]) -> Result<(u64, u64), Error> {
        let (first, end) = (self.next, self.next + children.len() as u64);
        if end > MAX_CHILDREN || self.sealed.is_some_and(|children| end > children) {
            let text =
                format!("the batch `{}` was sealed with fewer children, or has too many", self.id.as_str());
            return Err(Error::new(ErrorKind::Conflict, text));
        }
        if self.is_swept {
            return Ok((end, end));
        }
        let ChildAnnouncement { before, changed } = self.ledger().announce(first, children).await?;
        if changed && !self.is_change_logged {
            self.is_change_logged = true;
            let batch = self.id.as_str();
            crate::log::warn!(%batch, first, "children have another form than those that an earlier start announced: those that it sent keep their form");
        }
        Ok((first + before as u64, end))
    }

    fn child_options(&self, index: u64, secret: &str, options: SendOptions) -> SendOptions {
        let own_id = format!("{}/{index}", self.id.as_str());
        let policy = match self.on_dead {
            OnDeadLetters::Wait => SendOptions::new().own_header(ON_DEAD, "wait").own_header(COPY, "0"),
            // Only the message that has the turn can fail such a child, so each message makes its claim
            // immediately.
            OnDeadLetters::Continue => SendOptions::new().own_header(ON_DEAD, "continue"),
        };
        // The batch's headers have priority over the caller's headers, and the caller's id over the batch's
        // id.
        let index = index.to_string();
        let options = policy
            .own_header(BATCH, self.id.as_str())
            .own_header(INDEX, &*index)
            .or(options)
            .or(SendOptions::new().source(source(secret)).id(own_id));
        let (id, source, _) = options.identity();
        let token = token(secret, &index, &source.unwrap_or_default(), id.unwrap_or_default());
        options.own_header(TOKEN, token)
    }
}

impl Ledger<'_> {
    /// Announces the children from number `first` on, before they are sent.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if an earlier start has announced other children under these
    /// numbers, [`Storage`](ErrorKind::Storage) if the storage fails.
    pub(super) async fn announce(
        &self,
        first: u64,
        children: &[ChildRecord],
    ) -> Result<ChildAnnouncement, Error> {
        let mut all = ChildAnnouncement { before: 0, changed: false };
        let (mut at, mut rest) = (first, children);
        while !rest.is_empty() {
            let room = usize::try_from(GROUP_SIZE - at % GROUP_SIZE).unwrap_or(rest.len()).min(rest.len());
            let (here, later) = rest.split_at(room);
            let ChildAnnouncement { before, changed } = self.announce_in_group(at, here).await?;
            all.before += before;
            all.changed |= changed;
            (at, rest) = (at + room as u64, later);
        }
        Ok(all)
    }

    /// Announces children of a single group.
    async fn announce_in_group(
        &self,
        first: u64,
        children: &[ChildRecord],
    ) -> Result<ChildAnnouncement, Error> {
        let blob = self.id.roster(first / GROUP_SIZE)?;
        let place = usize::try_from(first % GROUP_SIZE).unwrap_or(usize::MAX);
        let announce = |found| announce_children(found, place, children);
        let document = self.document(&blob);
        let announced = document.change(Known::Nothing, announce).await?.result;
        announced.ok_or_else(|| other_children(&self.id))
    }

    /// Checks that no more than this number of children was announced.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if an earlier start has announced more.
    pub(super) async fn check_announced(&self, children: u64) -> Result<(), Error> {
        let names: Vec<ChildRecord> =
            self.read(&self.id.roster(children / GROUP_SIZE)?).await?.unwrap_or_default();
        if names.len() as u64 == children % GROUP_SIZE {
            return Ok(());
        }
        Err(if self.is_swept().await? { self.swept_during_start() } else { other_children(&self.id) })
    }
}

fn other_children(id: &BatchId) -> Error {
    let id = id.as_str();
    let text = format!(
        "an earlier start of the batch `{id}` has sent other children, or more of them; a restart must send the same children \
         in the same order, and another fan-out needs an id of its own"
    );
    Error::new(ErrorKind::Conflict, text)
}
