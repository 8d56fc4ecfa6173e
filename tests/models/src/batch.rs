//! Batches: children, restarts, and the continuation that follows.
//!
//! | property | invariant |
//! |---|---|
//! | [`NOT_BEFORE`] | the promise of batches: the continuation is not put until every child is done |
//! | [`NEVER_MISSING`] | I12b: whatever has happened, the batch continues and all its jobs end once faults end |
//! | [`NOTHING_LOST`] | I1, I12, I12a: a child that was sent is in the queue, in the dead-letter queue or done; so is the continuation |
//! | [`WITH_A_CAUSE`] | I2: a handler runs again only after a fault |
//!
//! The model leaves out groups of more than a hundred children, results, expiry, and sweeps of batches.

use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::{JobError, QueueMessage, Storage, Worker};
use serde::{Deserialize, Serialize};

use crate::model::{Scenario, State};
use crate::process::{Application, Program, Run, Start};

/// Property; see the table of this module.
pub const NOT_BEFORE: &str = "the continuation comes after all children";
/// Property; see the table of this module.
pub const NEVER_MISSING: &str = "a batch continues";
/// Property; see the table of this module.
pub const NOTHING_LOST: &str = "no child and no continuation is lost";
/// Property; see the table of this module.
pub const WITH_A_CAUSE: &str = "a handler runs again only with a cause";

/// The number of children.
const CHILDREN: u8 = 2;

/// A child.
#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "pages", kind = "page")]
struct Page {
    n: u8,
}

/// The continuation.
#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "books", kind = "book")]
struct Book {}

/// The scenario.
pub const BATCH: Scenario = Scenario {
    programs: &[
        Program { name: "fan-out", start: Start::Once, run: fan_out },
        Program { name: "worker of pages", start: Start::Message("pages"), run: work_on_pages },
        Program { name: "worker of books", start: Start::Message("books"), run: work_on_books },
        Program { name: "redrive", start: Start::While("pages-poison", 1), run: redrive },
    ],
    workers: 2,
    sends_first: false,
    deliveries: 2,
    properties: &[
        (NOT_BEFORE, |_, state| {
            !state.store.puts.contains_key("books") || (0..CHILDREN).all(|n| state.count("page", n) > 0)
        }),
        (NEVER_MISSING, |model, state| model.recovers(state)),
        (NOTHING_LOST, |_, state| is_nothing_lost(state)),
        (WITH_A_CAUSE, |model, state| {
            let most = 1 + model.causes(state);
            (0..CHILDREN).all(|n| state.count("page", n) <= most) && state.count("book", 0) <= most
        }),
    ],
    has_ended: |state| state.has_run(0) && state.store.messages.is_empty() && state.count("book", 0) > 0,
};

/// Like [`BATCH`], but the program sends its last child outside of the batch.
pub const FORGETS_A_CHILD: Scenario = Scenario {
    programs: &[
        Program { name: "fan-out", start: Start::Once, run: fan_out_forgetfully },
        Program { name: "worker of pages", start: Start::Message("pages"), run: work_on_pages },
        Program { name: "worker of books", start: Start::Message("books"), run: work_on_books },
    ],
    ..BATCH
};

/// Like [`BATCH`], but the program sends the batch a second time under another id.
pub const BEGINS_ANEW: Scenario = Scenario {
    programs: &[
        Program { name: "fan-out", start: Start::Once, run: fan_out_twice },
        Program { name: "worker of pages", start: Start::Message("pages"), run: work_on_pages },
        Program { name: "worker of books", start: Start::Message("books"), run: work_on_books },
    ],
    ..BATCH
};

fn fan_out(storage: Storage, application: Application) -> Run {
    Box::pin(async move {
        let mut batch = storage.batch("b").await?;
        batch.send_all((0..CHILDREN).map(|n| Page { n })).await?;
        application.note("sent", 0).await;
        batch.then(&Book {}).await
    })
}

fn fan_out_forgetfully(storage: Storage, application: Application) -> Run {
    Box::pin(async move {
        let mut batch = storage.batch("b").await?;
        batch.send_all((0..CHILDREN - 1).map(|n| Page { n })).await?;
        let _ = storage.queue::<Page>().await?.send(&Page { n: CHILDREN - 1 }).await?;
        application.note("sent", 0).await;
        batch.then(&Book {}).await
    })
}

fn fan_out_twice(storage: Storage, _: Application) -> Run {
    Box::pin(async move {
        for id in ["b", "c"] {
            let mut batch = storage.batch(id).await?;
            batch.send_all((0..CHILDREN).map(|n| Page { n })).await?;
            batch.then(&Book {}).await?;
        }
        Ok(())
    })
}

fn work_on_pages(storage: Storage, application: Application) -> Run {
    let handler = move |page: Page| {
        let application = application.clone();
        async move {
            if application.fails(page.n).await {
                return Err(JobError::dead_letter("it fails for good"));
            }
            application.note("page", page.n).await;
            Ok(())
        }
    };
    Box::pin(async move {
        Worker::builder(storage).concurrency(1).handle(handler).build()?.run_until_idle().await.map(drop)
    })
}

fn work_on_books(storage: Storage, application: Application) -> Run {
    let handler = move |_: Book| {
        let application = application.clone();
        async move {
            application.note("book", 0).await;
            Ok::<_, JobError>(())
        }
    };
    Box::pin(async move {
        Worker::builder(storage).concurrency(1).handle(handler).build()?.run_until_idle().await.map(drop)
    })
}

fn redrive(storage: Storage, _: Application) -> Run {
    Box::pin(async move {
        let pages = storage.queue::<Page>().await?;
        pages.dead_letters()?.redrive(DeadLetterOptions::new()).await.map(drop)
    })
}

fn is_nothing_lost(state: &State) -> bool {
    let store = &state.store;
    let is_kept = |n: u8| {
        let page = format!(r#""n":{n}"#);
        state.count("page", n) > 0 || store.holds("pages", &page) || store.holds("pages-poison", &page)
    };
    let continues = !store.puts.contains_key("books")
        || state.count("book", 0) > 0
        || store.of_queue("books").next().is_some();
    (state.count("sent", 0) == 0 || (0..CHILDREN).all(is_kept)) && continues
}
