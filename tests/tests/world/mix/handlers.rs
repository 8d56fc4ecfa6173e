//! The handlers of a world's workers.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use jobqueue::chunk::ChunkJob;
use jobqueue::leader::Leader;
use jobqueue::schedule::{CatchUp, Schedule};
use jobqueue::worker::{CheckpointOutcome, HandlerLimits, QueueLimits, RateLimit};
use jobqueue::{Context, JobError, State, WorkerBuilder};
use jobqueue_testing::world::{Node, World};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::sleep;

use super::actors::subject;
use super::batches;
use super::diary::{Diary, Note};
use super::features::Feature;
use super::messages::{Former, Join, Newer, Part, Tick, Work};
use super::spec::{Script, filling};

/// The context of a handler: its world, diary and process.
#[derive(Clone)]
pub(super) struct HandlerEnv {
    pub(super) world: World,
    pub(super) diary: Diary,
    pub(super) node: Arc<str>,
}

impl HandlerEnv {
    pub(super) fn note(&self, note: Note) {
        self.diary.note(&self.world, &self.node, note);
    }
}

/// Configures a worker: handlers, limits, schedule, leader and journal, as the plan requires.
pub(super) fn configure_worker(
    worker: WorkerBuilder,
    node: &Node,
    world: &World,
    diary: &Diary,
) -> WorkerBuilder {
    let env = HandlerEnv { world: world.clone(), diary: diary.clone(), node: Arc::clone(node.name()) };
    let plan = &diary.plan;
    let mut worker = worker.state(env.clone()).concurrency(6).max_idle_delay(Duration::from_secs(12));
    worker = worker.shutdown_timeout(Duration::from_secs(5)).cancel_grace(Duration::from_secs(15));
    worker = worker.handle(part).handle(join).handle(tick);
    // In every other world, a call handles several jobs. Limits may leave a handler fewer slots than a call
    // has jobs, so worlds with limits do not.
    worker = if plan.noise.is_multiple_of(2) && !plan.has(Feature::Limits) {
        worker.handle_many(3, works)
    } else {
        worker.handle(work)
    };
    if plan.has(Feature::Versions) {
        // One process of the fleet runs the former release.
        let is_old = node.name().starts_with("worker0") && plan.workers > 1;
        worker = if is_old { worker.handle(former) } else { worker.handle(newer) };
    }
    if plan.has(Feature::Schedule) {
        let every = Schedule::every(Duration::from_secs(20)).name("ticks").lease(Duration::from_secs(15));
        worker = worker.schedule_by(every.missed(CatchUp::All(100)), || Tick {});
    }
    if plan.has(Feature::Leader) {
        let leader = Leader::new(&node.storage(), "world").unwrap();
        let leader = Arc::new(leader.lease(Duration::from_secs(15)));
        diary.candidate(node.name(), &leader);
        drop(node.spawn(lead(leader, env)));
    }
    if plan.has(Feature::CancelPlans) {
        // A worker learns of requests from its presence record, which it does not keep by default on virtual
        // time.
        worker = worker.presence(Duration::from_secs(15));
    }
    if let Some(kept) = plan.history() {
        worker = worker.name(node.name().to_string()).history(kept);
    }
    if plan.has(Feature::Limits) {
        worker = limit(worker, plan.noise);
    }
    worker.durable_completions(plan.has(Feature::Durable))
}

/// Limits a worker, with settings that the noise decides.
fn limit(worker: WorkerBuilder, noise: u64) -> WorkerBuilder {
    let mut rng = StdRng::seed_from_u64(noise);
    let rate =
        RateLimit::new(rng.random_range(1..=20), Duration::from_secs(1)).burst(rng.random_range(1..=4));
    let mut handler = || {
        let limits = HandlerLimits::new();
        let limits = if rng.random() { limits.concurrency(rng.random_range(1..=2)) } else { limits };
        if rng.random() { limits.rate(&rate) } else { limits }
    };
    let (work, part, join) = (handler(), handler(), handler());
    let queue = |rng: &mut StdRng| {
        let limits = QueueLimits::new().weight(rng.random_range(1..=5));
        if rng.random() { limits.concurrency(rng.random_range(1..=3)) } else { limits }
    };
    let worker = worker.concurrency(rng.random_range(1..=6)).limit_queue("work", queue(&mut rng));
    let worker = worker.limit_queue("parts", queue(&mut rng));
    worker.limit::<Work>(work).limit::<Part>(part).limit::<Join>(join)
}

/// Repeatedly leads for a while, when it can.
async fn lead(leader: Arc<Leader>, env: HandlerEnv) {
    loop {
        let led = leader.run_while_leader(|leadership| {
            let env = env.clone();
            async move {
                for _ in 0..20 {
                    sleep(Duration::from_secs(1)).await;
                    let leading = env.diary.leading();
                    if leadership.has_control() && leading.len() > 1 {
                        env.diary.wrong("two processes lead", "leader", format!("{leading:?}"));
                    }
                }
            }
        });
        if led.await.is_err() {
            sleep(Duration::from_secs(1)).await;
        }
        sleep(Duration::from_secs(2)).await;
    }
}

async fn work(work: Work, ctx: Context, State(env): State<HandlerEnv>) -> Result<(), JobError> {
    // A sender that takes over unique work from a dead sender sends its own message under the id of that
    // sender, and the job has that id.
    let is_other = *work.id != *ctx.info().id && !env.diary.plan.has(Feature::Unique);
    let job = subject(&ctx.info().source, &ctx.info().id);
    if is_other || work.filling != filling(&work.id, work.filling.len()) {
        env.diary.wrong("a payload is not what was sent", &job, format!("{} bytes", work.filling.len()));
    }
    act(&job, &work.script, &ctx, &env).await
}

/// Runs several jobs in one call, each with its own result. A job whose token fires ends immediately, and the
/// others go on.
async fn works(jobs: Vec<ChunkJob<Work>>, State(env): State<HandlerEnv>) -> Result<(), JobError> {
    let each = jobs.into_iter().map(|job| async {
        let context = job.context.clone();
        let run = work(job.message.clone(), context.clone(), State(env.clone()));
        match context.token().run_until_cancelled(AssertUnwindSafe(run).catch_unwind()).await {
            Some(Ok(Ok(()))) => job.complete(),
            Some(Ok(Err(error))) => job.fail(error),
            Some(Err(_)) => job.fail(JobError::retry("as the script says, by a panic")),
            None => job.fail(JobError::retry("the job was stopped")),
        }
    });
    join_all(each).await;
    Ok(())
}

async fn part(part: Part, ctx: Context, State(env): State<HandlerEnv>) -> Result<(), JobError> {
    act(&part.id, &part.script, &ctx, &env).await?;
    if part.script.fan.is_none() {
        ctx.set_result(&part.id)?;
    }
    Ok(())
}

async fn join(join: Join, ctx: Context, State(env): State<HandlerEnv>) -> Result<(), JobError> {
    let results = ctx.batch_results::<String>().await?;
    let missing = results.iter().filter(|child| child.outcome.is_err()).count();
    env.note(Note::Undone { id: join.id.clone(), missing });
    act(&join.id, &join.script, &ctx, &env).await?;
    Ok(ctx.set_result(&join.id)?)
}

async fn tick(_: Tick) -> Result<(), JobError> {
    sleep(Duration::from_millis(50)).await;
    Ok(())
}

async fn former(_: Former) -> Result<(), JobError> {
    Ok(())
}

/// Fails twice, four times or never, which is more often than its former release may.
async fn newer(newer: Newer, ctx: Context) -> Result<(), JobError> {
    let failures = newer.id.bytes().map(u32::from).sum::<u32>() % 3 * 2;
    if newer.new == 1 && ctx.info().attempt <= failures {
        return Err(JobError::retry("as the release says"));
    }
    Ok(())
}

/// Performs the script of a job.
async fn act(id: &str, script: &Script, ctx: &Context, env: &HandlerEnv) -> Result<(), JobError> {
    env.note(Note::Fence { id: id.to_owned(), fence: ctx.fence() });
    let deliveries = ctx.info().dequeue_count;
    if deliveries <= script.snooze {
        if env.diary.plan.has(Feature::Limits) {
            ctx.snooze_queue(Duration::from_secs(2));
        }
        return Err(JobError::snooze(Duration::from_secs(3)));
    }
    progress(id, script, ctx, env).await?;
    if script.step {
        let value = env.world.draw();
        let value = ctx.step("step", || async move { Ok::<_, JobError>(value) }).await?;
        env.note(Note::Step { id: id.to_owned(), value });
    }
    if script.once {
        let value = env.world.draw();
        let effect = || async move {
            env.note(Note::OnceHappens { id: id.to_owned() });
            sleep(Duration::from_millis(100)).await;
            Ok::<_, JobError>(value)
        };
        let value = ctx.once("once", effect).await?;
        env.note(Note::Once { id: id.to_owned(), value });
    }
    if let Some(fan) = script.fan.as_deref().filter(|_| script.fan_in_step) {
        let start = || batches::start_within(ctx, fan, |note| env.note(note));
        ctx.step("fan", || async { Ok::<_, JobError>(start().await?) }).await?;
    }
    sleep(Duration::from_millis(script.millis)).await;
    if ctx.info().attempt <= script.fail {
        assert!(!script.panic, "as the script says");
        return Err(JobError::retry("as the script says"));
    }
    if script.reject {
        return Err(JobError::dead_letter("as the script says"));
    }
    if let Some(fan) = script.fan.as_deref().filter(|_| !script.fan_in_step) {
        batches::start_within(ctx, fan, |note| env.note(note)).await?;
    }
    Ok(())
}

#[derive(serde::Serialize, serde::Deserialize, Default)]
struct Progress {
    value: u32,
    ballast: String,
}

async fn progress(id: &str, script: &Script, ctx: &Context, env: &HandlerEnv) -> Result<(), JobError> {
    if script.checkpoints == 0 {
        return Ok(());
    }
    let found: Progress = match ctx.resume().await {
        Ok(found) => found.unwrap_or_default(),
        Err(error) => {
            // A process that has lost its job may come too late.
            if !error.is_retryable() && !ctx.is_cancelled() && !env.diary.plan.has(Feature::Freezes) {
                env.diary.wrong("a checkpoint cannot be read", id, format!("{error:?}"));
            }
            return Err(error.into());
        }
    };
    env.note(Note::Resumed { id: id.to_owned(), value: found.value });
    for value in found.value + 1..=script.checkpoints {
        sleep(Duration::from_millis(300)).await;
        let ballast = "x".repeat(if script.large_checkpoints { 70_000 } else { 0 });
        if ctx.checkpoint(&Progress { value, ballast }).await? == CheckpointOutcome::Saved {
            env.note(Note::Saved { id: id.to_owned(), value });
        }
    }
    Ok(())
}
