//! Senders, which perform their actions in simulated processes.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::queue::SendUniqueOutcome;
use jobqueue::storage::{ContainerName, PutMessage};
use jobqueue::{Error, Queue, QueueMessage, QueueName, SendOptions, Sent};
use jobqueue_testing::world::{Node, Verdict, World};
use tokio::time::sleep;

use super::action::{Action, ActionKind};
use super::batches;
use super::checks::journal;
use super::diary::{Diary, Note};
use super::messages::{Former, Newer, Part, Work};
use super::spec::{Fan, Script, Spec, filling};

/// The process of a sender, and the last job that it sent.
#[derive(Clone)]
pub(super) struct Actor {
    pub(super) world: World,
    pub(super) diary: Diary,
    pub(super) node: Node,
    /// The last message that was sent, and the name of its job in the history.
    last: Arc<Mutex<Option<(Sent, String)>>>,
}

/// The time after which pauses are lifted although an action has not ended.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// Performs the plan: each action at its time, in the process of its actor. If that process has died, another
/// one is started.
pub(super) async fn play(world: World, diary: Diary) -> Result<(), Error> {
    let mut actors: Vec<Option<Actor>> = vec![None, None];
    let mut tasks = Vec::new();
    for action in diary.plan.actions.clone() {
        sleep(action.at.saturating_sub(world.now())).await;
        let place = &mut actors[action.actor];
        let alive = place.take().filter(|actor| !actor.node.process().is_killed());
        let actor = alive.unwrap_or_else(|| {
            let node = world.node(format!("sender{}", action.actor));
            Actor { world: world.clone(), diary: diary.clone(), node, last: Arc::default() }
        });
        *place = Some(actor.clone());
        let node = actor.node.clone();
        let task = node.spawn(async move { actor.act(action).await });
        tasks.push((node, task));
    }
    let mut ends = pin!(async {
        // The task of a process that died never ends.
        for (node, mut task) in tasks {
            while !node.process().is_killed() {
                if tokio::time::timeout(Duration::from_secs(1), &mut task).await.is_ok() {
                    break;
                }
            }
        }
    });
    // A canary waits for as long as its queue is paused.
    if tokio::time::timeout(LONGEST_PAUSE, &mut ends).await.is_err() {
        lift_pauses(&world, &diary).await?;
        ends.await;
    }
    lift_pauses(&world, &diary).await
}

/// Resumes the queue of work, because the process that paused it may have died.
async fn lift_pauses(world: &World, diary: &Diary) -> Result<(), Error> {
    let storage = &world.accounts()[0];
    let name = QueueName::new(Work::QUEUE)?;
    if let Ok(metadata) = storage.queues().queue_metadata(&name).await {
        diary.note_end_of_pauses(world, &"world".into());
        storage.queues().set_queue_metadata(&name, &metadata.with("paused", "false")).await?;
    }
    Ok(())
}

impl Actor {
    async fn act(&self, action: Action) {
        let done = match action.what {
            ActionKind::Send(spec) => self.send(spec).await,
            ActionKind::SendAll(specs) => self.send_all(specs).await,
            ActionKind::Unique { spec, window, twice: false } => self.unique(spec, window).await.map(drop),
            ActionKind::Unique { spec, window, twice: true } => self.unique_twice(spec, window).await,
            ActionKind::Cancel => self.cancel().await,
            ActionKind::CancelUnique { key } => self.cancel_unique(&key).await,
            ActionKind::Batch(fan) => self.batch(&fan).await,
            ActionKind::Forge { id, batch, index, continues } => {
                self.forge(&id, &batch, index, continues).await
            }
            ActionKind::Release { ids, newer } => self.release(&ids, newer).await,
            ActionKind::Steal { id, choice } => self.steal(&id, choice).await,
            ActionKind::Redrive { dies_at, per_second } => {
                if let Some(call) = dies_at {
                    self.node.kill_at_call(call, true);
                }
                self.redrive(per_second).await
            }
            ActionKind::Purge => self.purge().await,
            ActionKind::Clear => self.clear().await,
            ActionKind::Sweep => self.sweep().await,
            ActionKind::Search => journal::search(&self.world, &self.node, &self.diary).await,
            ActionKind::Pause { time } => self.pause(time).await,
            ActionKind::PauseFor { time } => self.pause_for(time).await,
            ActionKind::CancelAll { key } => self.cancel_all(&key).await,
            ActionKind::RedriveAfterCanary => self.redrive_after_canary().await,
            ActionKind::Threshold { attempts } => self.set_threshold(attempts).await,
            ActionKind::KillSender { call, applied } => {
                self.node.kill_at_call(call, applied);
                Ok(())
            }
            ActionKind::KillSenderAt { operation, applied } => {
                self.node.kill_at(operation, applied);
                Ok(())
            }
            ActionKind::LoseRequest { operation, wait } => {
                self.node.lose_answer(operation, wait, false);
                Ok(())
            }
            // The world performs incidents itself.
            ActionKind::Incident(_) => Ok(()),
        };
        if let Err(error) = done {
            self.world.note(self.node.name(), format!("gave up: {error:?}"));
        }
    }

    pub(super) async fn queue<M: QueueMessage>(&self) -> Result<Queue<M>, Error> {
        self.node.queue().await
    }

    pub(super) fn note(&self, note: Note) {
        self.diary.note(&self.world, self.node.name(), note);
    }

    async fn send(&self, spec: Spec) -> Result<(), Error> {
        let queue = self.queue::<Work>().await?;
        for _ in 0..4 {
            let (message, options) = write(&spec);
            match self.node.send_with(&queue, &message, spec.identity().1, options).await {
                Ok(sent) => {
                    *self.last.lock().unwrap() = Some((sent, spec.id));
                    return Ok(());
                }
                Err(error) if error.is_outcome_unknown() && spec.resend => {
                    sleep(Duration::from_secs(1)).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn send_all(&self, specs: Vec<Spec>) -> Result<(), Error> {
        let queue = self.queue::<Work>().await?;
        let messages: Vec<_> = specs.iter().map(write).collect();
        specs.iter().for_each(|spec| self.node.send_begins(&spec.id, "work"));
        let expires = |spec: &Spec| spec.ttl.map(|ttl| self.world.now() + ttl);
        let expires: Vec<_> = specs.iter().map(expires).collect();
        let options = specs
            .iter()
            .zip(&messages)
            .map(|(spec, (message, options))| (message, options.clone().id(spec.identity().1)));
        match queue.send_all(options).await {
            Ok(answers) => {
                for ((spec, answer), expires) in specs.iter().zip(answers).zip(expires) {
                    self.node.note_answer(&spec.id, verdict(&answer), expires);
                }
            }
            Err(error) => {
                specs.iter().for_each(|spec| self.node.note_answer(&spec.id, Verdict::Refused, None));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Sends unique work twice at the same time, like a form that is submitted twice.
    async fn unique_twice(&self, spec: Spec, window: Duration) -> Result<(), Error> {
        let id = spec.id.clone();
        let (one, other) = tokio::join!(self.unique(spec.clone(), window), self.unique(spec, window));
        if one? && other? && self.diary.plan.is_quiet() {
            self.diary.wrong("unique work was sent by both of two", &id, "at once, under one id".to_owned());
        }
        Ok(())
    }

    /// Sends unique work. Returns whether it was sent, and had not been sent before.
    async fn unique(&self, spec: Spec, window: Duration) -> Result<bool, Error> {
        let queue = self.queue::<Work>().await?;
        let (message, options) = write(&spec);
        self.node.send_begins(&spec.id, "work");
        let began = self
            .world
            .note(self.node.name(), format!("wants unique {} as {}", spec.key.as_ref().unwrap(), spec.id));
        let at = self.world.now().as_millis() as u64;
        match queue.send(&message).unique_for(window).with(options.id(spec.identity().1)).await {
            Ok(outcome) => {
                let (id, is_sent) = (outcome.id().to_owned(), outcome.is_sent());
                // A sender that joined may rely on the job. A sender that took over has sent under the id of
                // the first sender.
                if is_sent && id != spec.id {
                    self.node.send_begins(&id, "work");
                }
                self.node.note_answer(&id, Verdict::Acknowledged, None);
                let (key, window) = (spec.key.unwrap(), window.as_millis() as u64);
                self.note(Note::Unique { key, began, at, window, id: id.clone(), is_sent });
                if let SendUniqueOutcome::Sent(sent) = outcome {
                    *self.last.lock().unwrap() = Some((sent, id));
                }
                Ok(is_sent)
            }
            Err(error) => {
                self.node.note_answer(&spec.id, verdict::<()>(&Err(error)), None);
                Ok(false)
            }
        }
    }

    async fn cancel(&self) -> Result<(), Error> {
        let Some((sent, id)) = self.last.lock().unwrap().take() else { return Ok(()) };
        let queue = self.queue::<Work>().await?;
        // Recorded first, because the process may die during the request.
        self.node.account_for(&id, "cancelled, perhaps");
        match queue.cancel(&sent).await {
            Ok(true) => self.note(Note::Cancelled { id }),
            Ok(false) => self.node.kept(&id),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn cancel_unique(&self, key: &str) -> Result<(), Error> {
        let queue = self.queue::<Work>().await?;
        // Recorded first, because the process may die during the request.
        let specs = || self.diary.plan.unique().filter(|spec| spec.key.as_deref() == Some(key));
        specs().for_each(|spec| self.node.account_for(&spec.id, "unique work cancelled, perhaps"));
        self.note(Note::UniqueCancelled { key: key.to_owned() });
        let began = self.world.note(self.node.name(), format!("cancels unique {key}"));
        let done = queue.cancel_unique(key).await;
        self.world.note(self.node.name(), format!("cancels unique {key}: {done:?}"));
        if let Ok(false) = done {
            specs().for_each(|spec| self.node.kept(&spec.id));
            self.note(Note::UniqueKept { key: key.to_owned(), began });
        }
        Ok(())
    }

    async fn batch(&self, fan: &Fan) -> Result<(), Error> {
        if fan.interrupted {
            self.note(Note::BatchBegins { id: fan.id.clone() });
        }
        if fan.interrupted && batches::interrupt(&self.node, fan).await? {
            self.diary.wrong("a batch is sealed with fewer children than were sent", &fan.id, String::new());
        }
        for _ in 0..20 {
            match batches::start_outside(&self.node, fan, |note| self.note(note)).await {
                Ok(()) => return Ok(()),
                Err(error) if error.is_retryable() || error.is_outcome_unknown() => {
                    self.world.note(self.node.name(), format!("batch {}: {error:?}", fan.id));
                    sleep(Duration::from_secs(2)).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Puts a job with the headers of a child or a continuation, as another program might. Regular sends
    /// leave these headers out.
    async fn forge(&self, id: &str, batch: &str, index: u64, continues: bool) -> Result<(), Error> {
        let queue = self.queue::<Part>().await?;
        let (of, token) = if continues { ("batchof", "batchoftoken") } else { ("batchid", "batchtoken") };
        let part = Part { id: id.to_owned(), script: Script::default() };
        let event = serde_json::json!({
            "specversion": "1.0", "id": id, "source": "/jobqueue/forger", "type": Part::KIND, "datacontenttype": "application/json",
            "data": part, of: batch, token: "00", "batchindex": index.to_string(),
        });
        self.node.send_begins(id, queue.name().as_str());
        let message = PutMessage::new(event.to_string());
        let put = self.node.storage().queues().put(queue.name(), message).await;
        let verdict = if put.is_ok() { Verdict::Acknowledged } else { Verdict::Unknown };
        self.node.note_answer(id, verdict, None);
        Ok(put.map(drop)?)
    }

    /// Sends a job to the queue of parts that refers to the payload of a job of work. The end of the job must
    /// leave that payload alone.
    async fn steal(&self, id: &str, choice: u64) -> Result<(), Error> {
        let storage = self.node.storage();
        let stored = storage.blobs().list_blobs(&ContainerName::new("jobqueue-payloads")?, "", None).await?;
        let payloads: Vec<String> = stored.blobs.into_iter().map(|(name, _)| name.to_string()).collect();
        let own = |name: &&String| name.contains("/work/");
        let Some(name) = payloads.iter().filter(own).nth(choice as usize % payloads.len().max(1)) else {
            return Ok(());
        };
        let queue = self.queue::<Part>().await?;
        let event = serde_json::json!({
            "specversion": "1.0", "id": id, "source": "/thief", "type": Part::KIND, "datacontenttype": "application/json",
            "dataref": name, "datasize": 70_000, "datasha256": "00".repeat(32),
        });
        storage.queues().put(queue.name(), PutMessage::new(event.to_string())).await?;
        Ok(())
    }

    async fn release(&self, ids: &[String], newer: bool) -> Result<(), Error> {
        let (former, queue) = (self.queue::<Former>().await?, self.queue::<Newer>().await?);
        for id in ids {
            let (options, own) = (SendOptions::new(), id.clone());
            if newer {
                self.node.send_with(&queue, &Newer { id: own, new: 1 }, id, options).await?;
            } else {
                self.node.send_with(&former, &Former { id: own }, id, options).await?;
            }
        }
        Ok(())
    }
}

/// Returns the name of a job in the history.
pub(super) fn subject(source: &str, id: &str) -> String {
    if source.starts_with("/jobqueue/") { id.to_owned() } else { format!("{source} {id}") }
}

fn write(spec: &Spec) -> (Work, SendOptions) {
    // Jobs that share an id have the same payload and differ only in their source.
    let id = spec.identity().1;
    let message = Work { id: id.to_owned(), script: spec.script.clone(), filling: filling(id, spec.bytes) };
    let mut options = SendOptions::new();
    if spec.in_order {
        options = options.in_order();
    }
    if let (Some(source), _) = spec.identity() {
        options = options.source(source);
    }
    if spec.header > 0 {
        options = options.header("ballast", "x".repeat(spec.header));
    }
    if let Some(key) = &spec.key {
        options = options.key(key);
    }
    if let Some(delay) = spec.delay {
        options = options.delay(delay);
    }
    if let Some(ttl) = spec.ttl {
        options = options.ttl(ttl);
    }
    (message, options)
}

fn verdict<T>(answer: &Result<T, Error>) -> Verdict {
    match answer {
        Ok(_) => Verdict::Acknowledged,
        Err(error) if error.is_outcome_unknown() => Verdict::Unknown,
        Err(_) => Verdict::Refused,
    }
}
