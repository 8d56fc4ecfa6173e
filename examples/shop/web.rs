//! The web service of the shop: one page with one button, and a link to what became of the order.

use std::time::Duration;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use jobqueue::{Queue, Storage};
use jobqueue_examples::Failure;
use rand::RngExt as _;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::jobs::Payment;

const PAGE: &str = r#"<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Shop</title>
<h1>The shop</h1><form method="post" action="order"><button>Order something</button></form>
<p>See what becomes of it: <a href="jobs/">the dashboard</a>.</p>"#;

/// Returns the routes of the shop.
pub(crate) async fn shop(storage: &Storage) -> Result<Router, Failure> {
    let payments = storage.queue::<Payment>().await?;
    Ok(Router::new().route("/", get(page)).route("/order", post(order)).with_state(payments))
}

#[derive(Deserialize)]
struct Placed {
    order: Option<String>,
}

async fn page(Query(Placed { order }): Query<Placed>) -> Html<String> {
    // The number of an order needs no escaping; other texts are not shown.
    let is_number = |order: &String| order.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let placed = order.filter(is_number).map(|order| {
        format!(
            "<p>Thank you: <a href=\"jobs/job?queue=payments&amp;id={order}\">{order}</a> is being paid.</p>"
        )
    });
    Html(format!("{PAGE}{}", placed.unwrap_or_default()))
}

async fn order(State(payments): State<Queue<Payment>>) -> Response {
    let payment = something();
    match payments.send(&payment).id(payment.order.as_str()).await {
        Ok(_) => Redirect::to(&format!("/?order={}", payment.order)).into_response(),
        Err(error) => {
            tracing::error!(?error, "an order is lost");
            (StatusCode::SERVICE_UNAVAILABLE, "try again later").into_response()
        }
    }
}

/// Orders something every `interval` milliseconds.
pub(crate) async fn customers(
    storage: Storage,
    interval: u64,
    stop: CancellationToken,
) -> Result<(), Failure> {
    let payments = storage.queue::<Payment>().await?;
    while interval > 0 && !stop.is_cancelled() {
        let payment = something();
        payments.send(&payment).id(payment.order.as_str()).await?;
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(Duration::from_millis(interval)) => {}
        }
    }
    Ok(())
}

fn something() -> Payment {
    let order = format!("order-{}", uuid::Uuid::new_v4().simple());
    Payment { order, articles: rand::rng().random_range(1..=5) }
}
