//! Inspects the incoming frames for events that the client does not report: the answers to settlements, and
//! the end of a drain.
//!
//! A flow of a sending peer sets the client's delivery count to the peer's, which includes deliveries that
//! the client has yet to count. The client would count them twice, and grant more credit than was requested.
//! Therefore the link fields of such a flow are hidden from the client, and the owner of the link adds the
//! difference to the credit that it grants.

mod link_stats;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bytes::{Buf as _, BytesMut};
use fe2o3_amqp::types::definitions::{Fields, Role};
use fe2o3_amqp::types::performatives::{Attach, Disposition, Flow, Transfer};
use fe2o3_amqp::types::primitives::{Symbol, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{oneshot, watch};
use tokio::time::{Sleep, sleep};

pub(super) use self::link_stats::LinkKey;
use self::link_stats::LinkStats;
use super::super::error::Fault;
use super::close_detector::CloseDetector;
use super::nesting::{NO_TYPE, Nesting, payload_start};
use super::settlement::{SettlementAnswer, settled};
use super::values::{IDLE_TIMEOUT, MAX_FRAME, instant};
use jobqueue_storage::sync::lock;

const LOCKED_UNTIL: &str = "com.microsoft:locked-until-utc";
/// The .NET ticks (100 ns each) at the start of 1970.
const UNIX_EPOCH_TICKS: i64 = 621_355_968_000_000_000;
const BEGIN: u8 = 0x11;
const ATTACH: u8 = 0x12;
const FLOW: u8 = 0x13;
const TRANSFER: u8 = 0x14;
const DISPOSITION: u8 = 0x15;
const HEADER_BYTES: usize = 8;
const READ_BYTES: usize = 16_384;

/// Events from the incoming frames of a connection. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct FrameEvents {
    inner: Arc<Mutex<EventState>>,
    flows: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct EventState {
    /// The waiters by channel and delivery number, which each channel counts separately.
    waiting: BTreeMap<(u16, u32), oneshot::Sender<Result<(), Fault>>>,
    links: HashMap<LinkKey, LinkStats>,
    /// The deliveries whose values are nested too deeply, by channel.
    too_deep: HashSet<(u16, u32)>,
}

impl Default for FrameEvents {
    fn default() -> Self {
        Self { inner: Arc::default(), flows: watch::Sender::new(0) }
    }
}

impl FrameEvents {
    /// Returns the receiver of the answer to the settlement of a delivery. Call it before settling.
    pub(super) fn watch(&self, delivery: (u16, u32)) -> SettlementAnswer {
        let (waiter, answered) = oneshot::channel();
        let waiting = &mut lock(&self.inner).waiting;
        // Removes, at doubling sizes, waiters whose callers have stopped waiting.
        if waiting.len().is_power_of_two() {
            waiting.retain(|_, waiter| !waiter.is_closed());
        }
        waiting.insert(delivery, waiter);
        answered
    }

    /// Answers the settlement of a delivery that was not sent.
    pub(super) fn answer(&self, delivery: (u16, u32), settled: Result<(), Fault>) {
        if let Some(waiter) = lock(&self.inner).waiting.remove(&delivery) {
            let _ = waiter.send(settled);
        }
    }

    /// Returns the key of an attached link; `None` if its channel number has been reused.
    pub(super) fn find(&self, name: &str) -> Option<LinkKey> {
        let inner = lock(&self.inner);
        inner.links.iter().find(|(_, stats)| stats.name == name).map(|(key, _)| *key)
    }

    /// Returns the counters of an attached link.
    pub(super) fn link(&self, key: LinkKey) -> LinkStats {
        lock(&self.inner).links.get(&key).cloned().unwrap_or_default()
    }

    /// Returns whether the client could not decode a delivery because its values are nested too deeply;
    /// clears the mark.
    pub(super) fn was_too_deep(&self, delivery: (u16, u32)) -> bool {
        lock(&self.inner).too_deep.remove(&delivery)
    }

    pub(super) fn flows(&self) -> watch::Receiver<u64> {
        self.flows.subscribe()
    }

    /// Processes an incoming frame. Returns a replacement body if the client must not see the original.
    fn frame(&self, channel: u16, code: u8, body: &[u8]) -> Option<Vec<u8>> {
        match code {
            DISPOSITION => self.disposition(channel, serde_amqp::from_slice(body).ok()?),
            // Clears the state of an earlier channel with this number.
            BEGIN => {
                let mut inner = lock(&self.inner);
                inner.waiting.retain(|(of, _), _| *of != channel);
                inner.links.retain(|(of, _), _| *of != channel);
                inner.too_deep.retain(|(of, _)| *of != channel);
            }
            TRANSFER => return self.transfer(channel, body),
            ATTACH => {
                let attach: Attach = serde_amqp::from_slice(body).ok()?;
                let count = attach.initial_delivery_count.unwrap_or_default();
                let (name, sends) = (attach.name, attach.role == Role::Sender);
                let locked_until = attach.properties.as_ref().and_then(end_of_lock);
                let link = LinkStats { name, locked_until, sends, count, ..LinkStats::default() };
                lock(&self.inner).links.insert((channel, attach.handle.0), link);
            }
            FLOW => return self.flow(channel, serde_amqp::from_slice(body).ok()?),
            _ => {}
        }
        None
    }

    /// Counts a delivery. If its values are nested too deeply, replaces a type code by one that the client
    /// cannot decode.
    fn transfer(&self, channel: u16, body: &[u8]) -> Option<Vec<u8>> {
        let transfer: Transfer = serde_amqp::from_slice(body).ok()?;
        let start = payload_start(body).unwrap_or(body.len()).min(body.len());
        let mut inner = lock(&self.inner);
        let link = inner.links.entry((channel, transfer.handle.0)).or_default();
        link.delivery = transfer.delivery_id.or(link.delivery);
        let too_deep = link.message.take(&body[start..]);
        if !transfer.more || transfer.aborted {
            link.message = Nesting::default();
        }
        if !transfer.more && !transfer.aborted {
            link.deliveries += 1;
            link.count = link.count.wrapping_add(1);
        }
        let (too_deep, delivery) = (start + too_deep?, link.delivery?);
        inner.too_deep.insert((channel, delivery));
        let mut shown = body.to_vec();
        shown[too_deep] = NO_TYPE;
        Some(shown)
    }

    fn disposition(&self, channel: u16, disposition: Disposition) {
        let (Role::Sender, Some(state)) = (disposition.role, disposition.state) else { return };
        let mut inner = lock(&self.inner);
        let (first, last) = (disposition.first, disposition.last.unwrap_or(disposition.first));
        // The peer may name any range, so only the awaited deliveries are visited.
        if first <= last {
            let waiting = inner.waiting.range((channel, first)..=(channel, last));
            for delivery in waiting.map(|(delivery, _)| *delivery).collect::<Vec<_>>() {
                let waiter = inner.waiting.remove(&delivery);
                let _ = waiter.map(|waiter| waiter.send(settled(&state)));
            }
        }
    }

    /// Records the answer to a drain. Of a flow on a link whose peer sends, the client sees only the
    /// session's fields.
    fn flow(&self, channel: u16, mut flow: Flow) -> Option<Vec<u8>> {
        let handle = flow.handle.take()?;
        {
            let mut inner = lock(&self.inner);
            let link = inner.links.get_mut(&(channel, handle.0)).filter(|link| link.sends)?;
            if flow.drain && flow.link_credit == Some(0) {
                let count = flow.delivery_count.unwrap_or(link.count);
                link.drained = link.drained.wrapping_add(count.wrapping_sub(link.count));
                link.count = count;
                link.drained_at = Some((link.count, link.deliveries));
            }
        }
        if flow.drain {
            self.flows.send_modify(|number| *number = number.wrapping_add(1));
        }
        (flow.delivery_count, flow.link_credit, flow.available) = (None, None, None);
        (flow.drain, flow.echo, flow.properties) = (false, false, None);
        serde_amqp::to_vec(&flow).ok()
    }
}

fn end_of_lock(properties: &Fields) -> Option<SystemTime> {
    match properties.get(&Symbol::from(LOCKED_UNTIL))? {
        Value::Long(ticks) => of_ticks(*ticks),
        Value::Timestamp(at) => Some(instant(at.milliseconds())),
        _ => None,
    }
}

fn of_ticks(ticks: i64) -> Option<SystemTime> {
    let micros = u64::try_from(ticks.checked_sub(UNIX_EPOCH_TICKS)? / 10).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(micros))
}

/// A stream that inspects its incoming frames. The client waits for its writes and for the end of the stream
/// without a limit, and does not read during that time. So this stream fails a write without progress, and
/// does not wait for its end.
pub(super) struct FrameInspector<S> {
    io: S,
    chunk: Box<[u8]>,
    /// The received bytes: complete frames for the client, followed by the beginning of the next.
    bytes: BytesMut,
    complete: usize,
    events: FrameEvents,
    close: CloseDetector,
    /// Runs while a write waits for the peer.
    stalled: Option<Pin<Box<Sleep>>>,
}

jobqueue_storage::debug_fields! {
    /// The AMQP client requires `Debug`. The bytes may be secret.
    FrameInspector<S> {}
}

impl<S> FrameInspector<S> {
    pub(super) fn new(io: S) -> (Self, FrameEvents) {
        let events = FrameEvents::default();
        let chunk = vec![0; READ_BYTES].into_boxed_slice();
        let inspector = Self {
            io,
            chunk,
            bytes: BytesMut::new(),
            complete: 0,
            events: events.clone(),
            close: CloseDetector::default(),
            stalled: None,
        };
        (inspector, events)
    }

    /// Inspects the newly completed frames. The client has read all earlier frames, so the buffer begins with
    /// a new one.
    ///
    /// # Errors
    /// If the next frame is longer than the agreed maximum. Its bytes are not collected first.
    fn scan(&mut self) -> io::Result<()> {
        let mut replaced = None;
        let mut at = 0;
        while let Some((length, code)) = next_frame(&self.bytes[at..]) {
            let frame = &self.bytes[at..at + length];
            let body = code.and_then(|(code, start)| {
                let channel = u16::from_be_bytes([frame[6], frame[7]]);
                self.events.frame(channel, code, &frame[start..])
            });
            if body.is_some() && replaced.is_none() {
                replaced = Some(BytesMut::from(&self.bytes[..at]));
            }
            match (&mut replaced, body) {
                (Some(shown), Some(body)) => {
                    let length = u32::try_from(body.len() + HEADER_BYTES).unwrap_or_default();
                    shown.extend_from_slice(&length.to_be_bytes());
                    // No extended header; type and channel unchanged.
                    shown.extend_from_slice(&[2, frame[5], frame[6], frame[7]]);
                    shown.extend_from_slice(&body);
                }
                (Some(shown), None) => shown.extend_from_slice(frame),
                (None, _) => {}
            }
            at += length;
        }
        self.complete = at;
        let is_too_long = announced(&self.bytes[at..]).is_some_and(|length| length > MAX_FRAME as usize);
        if let Some(mut shown) = replaced {
            self.complete = shown.len();
            shown.extend_from_slice(&self.bytes[at..]);
            self.bytes = shown;
        }
        if is_too_long {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame is longer than was agreed on"));
        }
        Ok(())
    }

    /// Passes on the result of a write step; fails if writes have made no progress for too long.
    fn within_limit<T>(
        &mut self,
        context: &mut Context<'_>,
        step: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if step.is_ready() {
            self.stalled = None;
            return step;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(IDLE_TIMEOUT)));
        stalled.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

fn announced(bytes: &[u8]) -> Option<usize> {
    let head: [u8; 4] = bytes.get(..4)?.try_into().ok()?;
    (&head != b"AMQP").then(|| u32::from_be_bytes(head) as usize)
}

/// Returns the length of the first frame or protocol header and, for a frame, the code and the start of its
/// body; `None` if it is incomplete.
fn next_frame(bytes: &[u8]) -> Option<(usize, Option<(u8, usize)>)> {
    let head: [u8; HEADER_BYTES] = bytes.get(..HEADER_BYTES)?.try_into().ok()?;
    if &head[..4] == b"AMQP" {
        return Some((HEADER_BYTES, None));
    }
    let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
    // The client ends a connection on which a frame is shorter than its head.
    let length = length.max(HEADER_BYTES);
    let frame = bytes.get(..length)?;
    let start = (usize::from(head[4]) * 4).min(length);
    let body = &frame[start..];
    // The descriptor of a performative, as a one-byte or eight-byte number.
    let code = match body {
        [0, 0x53, code, _, ..] | [0, 0x80, 0, 0, 0, 0, 0, 0, 0, code, ..] => Some((*code, start)),
        _ => None,
    };
    Some((length, code.filter(|_| head[5] == 0)))
}

impl<S: AsyncRead + Unpin> AsyncRead for FrameInspector<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let Self { io, chunk, bytes, complete, close, .. } = &mut *self;
            if close.is_sent {
                return Poll::Ready(Ok(()));
            }
            if *complete > 0 {
                let count = buffer.remaining().min(*complete);
                buffer.put_slice(&bytes[..count]);
                bytes.advance(count);
                *complete -= count;
                return Poll::Ready(Ok(()));
            }
            let mut chunk = ReadBuf::new(chunk);
            match Pin::new(io).poll_read(context, &mut chunk) {
                Poll::Ready(Ok(())) if chunk.filled().is_empty() => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(())) => bytes.extend_from_slice(chunk.filled()),
                other => return other,
            }
            if let Err(error) = self.scan() {
                return Poll::Ready(Err(error));
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FrameInspector<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = written {
            self.close.written(&bytes[..count]);
        }
        self.within_limit(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(context);
        self.within_limit(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // WebSocket waits for the peer to confirm the end, which may never happen.
        Poll::Ready(match Pin::new(&mut self.io).poll_shutdown(context) {
            Poll::Ready(ended) => ended,
            Poll::Pending => Ok(()),
        })
    }
}
