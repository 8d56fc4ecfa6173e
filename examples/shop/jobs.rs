//! The jobs of the shop.

use std::time::Duration;

use jobqueue::{Context, JobError, QueueMessage, State};
use rand::RngExt as _;
use serde::{Deserialize, Serialize};

/// The world around the shop.
#[derive(Clone)]
pub(crate) struct World {
    /// The most milliseconds of a step.
    pub(crate) pace: u64,
    /// The percentage of cards that the bank refuses.
    pub(crate) refused: u32,
    /// The percentage of questions that the bank does not answer.
    pub(crate) outages: u32,
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "payments", kind = "payment")]
pub(crate) struct Payment {
    #[message(key, non_empty)]
    pub(crate) order: String,
    pub(crate) articles: u32,
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "orders", kind = "order.paid")]
pub(crate) struct Paid {
    pub(crate) order: String,
    pub(crate) articles: u32,
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "parcels", kind = "article")]
pub(crate) struct Article {
    pub(crate) order: String,
    pub(crate) number: u32,
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "mails", kind = "thanks")]
pub(crate) struct Thanks {
    pub(crate) order: String,
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "reports", kind = "report")]
pub(crate) struct Report {}

/// Takes the money. The bank is away now and then, which is tried again; a refused card is for a person to
/// decide.
pub(crate) async fn pay(payment: Payment, ctx: Context, State(world): State<World>) -> Result<(), JobError> {
    work(&world).await;
    let chance = |percent: u32| rand::rng().random_range(0..100) < percent;
    if chance(world.outages) {
        return Err(JobError::retry("the bank does not answer"));
    }
    if chance(world.refused) {
        return Err(JobError::dead_letter(format!("the card for {} was refused", payment.order)));
    }
    let paid = Paid { order: payment.order, articles: payment.articles };
    // A second attempt stores a second message under the same id. Both may run: `ship` opens one batch for
    // them, by the order.
    let id = format!("paid-{}", paid.order);
    ctx.queue::<Paid>().await?.send(&paid).id(id).await?;
    Ok(())
}

/// Packs all articles of an order, and thanks for it when all are packed.
pub(crate) async fn ship(order: Paid, ctx: Context) -> Result<(), JobError> {
    let mut batch = ctx.batch(&order.order).await?;
    batch.send_all((0..order.articles).map(|number| Article { order: order.order.clone(), number })).await?;
    Ok(batch.then(&Thanks { order: order.order }).await?)
}

pub(crate) async fn pack(article: Article, ctx: Context, State(world): State<World>) -> Result<(), JobError> {
    for (step, text) in ["fetching", "wrapping", "labelling"].into_iter().enumerate() {
        ctx.progress(step as u64, 3, format!("{text} article {} of {}", article.number, article.order));
        work(&world).await;
    }
    Ok(())
}

pub(crate) async fn thank(mail: Thanks, State(world): State<World>) -> Result<(), JobError> {
    tracing::info!(order = %mail.order, "thank you for your order");
    work(&world).await;
    Ok(())
}

/// Adds up the day: long enough to watch, and to cancel.
pub(crate) async fn report(_: Report, ctx: Context, State(world): State<World>) -> Result<(), JobError> {
    for page in 0..60 {
        ctx.progress(page, 60, "adding up");
        tokio::select! {
            () = ctx.token().cancelled() => return Err(JobError::retry("told to stop")),
            () = work(&world) => {}
        }
    }
    Ok(())
}

async fn work(world: &World) {
    let time = rand::rng().random_range(0..=world.pace);
    tokio::time::sleep(Duration::from_millis(time)).await;
}
