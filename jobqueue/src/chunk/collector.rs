//! Collects jobs into chunks, calls the function with each chunk, and gives every job its verdict.
//!
//! ```text
//!  job's run ──► take ──► chunk: members wait ──(full, or the linger is over)──► members run ──► verdicts
//!                          │ one of them, the driver, polls the call: its linger, then the function
//!                          └ each leaves when its run ends; the last one drops the call
//! ```

use std::future::poll_fn;
use std::mem;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll, Waker};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::ChunkOptions;
use super::handler::{ChunkFuture, ChunkHandler, sealed};
use super::job::ChunkJob;
use crate::delivery::Context;
use crate::handler::{ExtractError, FromJob, Job};
use crate::job::JobError;
use crate::job::outcome::panic_text;
use crate::message::QueueMessage;
use crate::sync::lock;

/// The error of a job whose token has fired before the call.
const NOT_BEGUN: &str = "nothing yet: the function was not called, because the job waited for others";

/// The result of a call, and of each of its jobs; a panic as its text.
type CallResult = Result<Result<(), JobError>, String>;

type Call<M> = Box<dyn Fn(Vec<ChunkJob<M>>, &Job) -> Result<ChunkFuture, ExtractError> + Send + Sync>;

/// The jobs of one registration.
pub(super) struct Collector<M> {
    options: ChunkOptions,
    call: Call<M>,
    /// The chunk that the next job may join.
    open: Mutex<Option<Arc<Chunk<M>>>>,
}

/// The jobs of one call.
pub(super) struct Chunk<M> {
    max: usize,
    full: Notify,
    state: Mutex<ChunkState<M>>,
}

struct ChunkState<M> {
    /// False once the call has begun, or the last member has left.
    is_open: bool,
    members: Vec<ChunkMember<M>>,
    /// The number of members that have not left.
    present: usize,
    /// The member whose task polls the call.
    driver: Option<usize>,
    /// The call between two polls; `None` after its end.
    call: Option<BoxFuture<'static, CallResult>>,
}

struct ChunkMember<M> {
    stage: Stage<M>,
    answer: Option<CallResult>,
    waker: Option<Waker>,
}

enum Stage<M> {
    Waiting(M, Context),
    Running,
    Left,
}

impl<M: QueueMessage> Collector<M> {
    pub(super) fn new<A: 'static, H: ChunkHandler<A, Message = M>>(
        options: ChunkOptions,
        handler: H,
    ) -> Self {
        let call: Call<M> = Box::new(move |jobs, job| handler.call(jobs, job, sealed::Token));
        Self { options, call, open: Mutex::default() }
    }

    /// Returns the run of a job: it joins a call, and ends with the job's verdict. If it is dropped, the job
    /// leaves the call.
    pub(super) fn take(self: Arc<Self>, job: Job, message: M) -> ChunkFuture {
        Box::pin(async move {
            let member = self.join(job, message)?;
            match poll_fn(|task| member.poll(task)).await {
                Ok(verdict) => verdict,
                // The job fails as if its own handler had panicked.
                Err(panic) => resume_unwind(Box::new(panic)),
            }
        })
    }

    fn join(self: &Arc<Self>, job: Job, message: M) -> Result<ChunkMembership<M>, ExtractError> {
        let context = Context::from_job(&job)?;
        let info = context.info();
        // Three kinds of jobs run alone: jobs that have failed, even before a redrive; jobs whose last worker
        // may have died; and jobs that a neighbour's failure would dead-letter.
        let leased_job = context.leased_job();
        let is_first = leased_job.is_first_attempt();
        let is_shared = is_first && leased_job.deliveries() <= 1 && info.max_attempts > 1;
        let mut joining = Stage::Waiting(message, context);
        let mut open = lock(&self.open);
        if is_shared && let Some(chunk) = &*open {
            match chunk.add(joining) {
                Ok(number) => return Ok(ChunkMembership { chunk: Arc::clone(chunk), number }),
                Err(refused) => joining = refused,
            }
        }
        let chunk = Arc::new(Chunk::new(if is_shared { self.options.max } else { 1 }, joining));
        lock(&chunk.state).call = Some(self.call_of(&chunk, job));
        if is_shared {
            *open = Some(Arc::clone(&chunk));
        }
        Ok(ChunkMembership { chunk, number: 0 })
    }

    /// Returns the call: it waits for more jobs, and then runs the function. `job` is the first job.
    fn call_of(self: &Arc<Self>, chunk: &Arc<Chunk<M>>, job: Job) -> BoxFuture<'static, CallResult> {
        let (collector, chunk, trace) = (Arc::clone(self), Arc::clone(chunk), job.info().trace);
        let call = async move {
            let _ = timeout(collector.options.linger, chunk.full.notified()).await;
            let jobs = chunk.begin();
            let is_shared = jobs.len() > 1;
            if jobs.is_empty() {
                return Ok(());
            }
            let running = (collector.call)(jobs, &job)?;
            match running.await {
                // Any of the jobs may have caused the error, so each is retried alone.
                Err(error) if is_shared => Err(error.of_several()),
                returned => returned,
            }
        };
        let answer = AssertUnwindSafe(crate::trace::scope(trace, call)).catch_unwind();
        answer.map(|answer| answer.map_err(|panic| panic_text(&*panic).to_owned())).boxed()
    }
}

impl<M> Chunk<M> {
    fn new(max: usize, first: Stage<M>) -> Self {
        let members = vec![ChunkMember::new(first)];
        let state = ChunkState { is_open: max > 1, members, present: 1, driver: None, call: None };
        let full = Notify::new();
        if max == 1 {
            full.notify_one();
        }
        Self { max, full, state: Mutex::new(state) }
    }

    /// Adds a job, and returns its number; returns the job itself if the chunk takes no more.
    fn add(&self, joining: Stage<M>) -> Result<usize, Stage<M>> {
        let mut state = lock(&self.state);
        if !state.is_open {
            return Err(joining);
        }
        state.members.push(ChunkMember::new(joining));
        state.present += 1;
        if state.present == self.max {
            state.is_open = false;
            self.full.notify_one();
        }
        Ok(state.members.len() - 1)
    }

    /// Ends the wait for more jobs, and returns those that may run.
    fn begin(self: &Arc<Self>) -> Vec<ChunkJob<M>> {
        let mut state = lock(&self.state);
        state.is_open = false;
        let mut jobs = Vec::with_capacity(state.present);
        for (number, member) in state.members.iter_mut().enumerate() {
            match mem::replace(&mut member.stage, Stage::Running) {
                Stage::Waiting(message, context) if !context.is_cancelled() => {
                    jobs.push(ChunkJob { message, context, chunk: Arc::clone(self), number });
                }
                stage => member.stage = stage,
            }
        }
        jobs
    }

    pub(super) fn end_one(&self, number: usize, verdict: Result<(), JobError>) {
        let waker = lock(&self.state).members[number].end(Ok(verdict));
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<M> ChunkMember<M> {
    fn new(stage: Stage<M>) -> Self {
        Self { stage, answer: None, waker: None }
    }

    /// Ends the job if it is running and has no verdict yet. Returns its waker.
    fn end(&mut self, answer: CallResult) -> Option<Waker> {
        if !matches!(self.stage, Stage::Running) || self.answer.is_some() {
            return None;
        }
        self.answer = Some(answer);
        self.waker.take()
    }

    /// Returns the job's result if it has ended; otherwise registers the task to be woken.
    fn ended(&mut self, task: &TaskContext<'_>) -> Poll<CallResult> {
        if let Some(answer) = self.answer.take() {
            return Poll::Ready(answer);
        }
        if let Stage::Waiting(_, context) = &self.stage
            && context.is_cancelled()
        {
            return Poll::Ready(Ok(Err(JobError::retry(NOT_BEGUN))));
        }
        self.waker = Some(task.waker().clone());
        Poll::Pending
    }
}

/// The membership of one job in a chunk. Dropping it makes the job leave; the last member to leave drops the
/// call.
struct ChunkMembership<M> {
    chunk: Arc<Chunk<M>>,
    number: usize,
}

impl<M> ChunkMembership<M> {
    /// Polls the call, unless another member does. Returns the result of this job if it has ended.
    fn poll(&self, task: &mut TaskContext<'_>) -> Poll<CallResult> {
        let mut call = {
            let mut state = lock(&self.chunk.state);
            let ended = state.members[self.number].ended(task);
            if ended.is_ready() || state.driver.is_some_and(|driver| driver != self.number) {
                return ended;
            }
            let Some(call) = state.call.take() else { return ended };
            state.driver = Some(self.number);
            call
        };
        // Polled without the lock, because the function may end jobs.
        let polled = call.as_mut().poll(task);
        let (ended, wakers) = {
            let mut state = lock(&self.chunk.state);
            let wakers: Vec<Waker> = match polled {
                Poll::Pending => {
                    state.call = Some(call);
                    Vec::new()
                }
                Poll::Ready(answer) => {
                    state.members.iter_mut().filter_map(|member| member.end(answer.clone())).collect()
                }
            };
            (state.members[self.number].ended(task), wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
        ended
    }
}

impl<M> Drop for ChunkMembership<M> {
    fn drop(&mut self) {
        let mut state = lock(&self.chunk.state);
        let member = mem::replace(&mut state.members[self.number], ChunkMember::new(Stage::Left));
        state.present -= 1;
        if state.driver == Some(self.number) {
            state.driver = None;
        }
        let (mut call, mut next) = (None, None);
        if state.present == 0 {
            state.is_open = false;
            call = state.call.take();
        } else if state.driver.is_none() && state.call.is_some() {
            // Another member takes over polling the call.
            next = state.members.iter_mut().rev().find_map(|member| member.waker.take());
        }
        drop(state);
        if let Some(waker) = next {
            waker.wake();
        }
        // Dropped without the lock: the call, the message and the error belong to the application.
        drop((call, member));
    }
}
