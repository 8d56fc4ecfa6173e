//! The four methods of the scaler.

use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, async_trait};

use super::generated::external_scaler_server::{ExternalScaler, ExternalScalerServer};
use super::generated::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec, MetricValue,
    ScaledObjectRef,
};
use super::metadata::Asked;
use super::stream::{Activity, activity};
use crate::scale::{Desired, Target};
use crate::snapshot::Snapshots;

/// The scaler: the service of gRPC that KEDA asks. Cheap to clone; clones share the snapshots.
///
/// It implements the four methods of KEDA's `externalscaler.ExternalScaler`. [`serve`](super::serve) runs it; for TLS, credentials or other
/// services on the same port, add [`into_service`](Self::into_service) to a server of your own:
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # use jobqueue::Storage; use jobqueue::admin::Admin;
/// use jobqueue_dashboard::keda::Scaler;
/// use jobqueue_dashboard::scale::Target;
/// use jobqueue_dashboard::snapshot::Snapshots;
/// use std::time::Duration;
///
/// let snapshots = Snapshots::new(Admin::new(Storage::memory()));
/// let scaler = Scaler::new(snapshots).target(Target::new().delay(Duration::from_secs(30)));
/// tonic::transport::Server::builder().add_service(scaler.into_service()).serve("[::]:6000".parse()?).await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Scaler {
    snapshots: Snapshots,
    target: Target,
    closing: CancellationToken,
}

impl Scaler {
    /// Returns a scaler that answers from snapshots, by the default [`Target`].
    pub fn new(snapshots: Snapshots) -> Self {
        Self { snapshots, target: Target::new(), closing: CancellationToken::new() }
    }

    /// Sets the target for triggers whose metadata has none. `targetDelay` and `slotsPerWorker` of a trigger have priority.
    #[must_use]
    pub fn target(mut self, target: Target) -> Self {
        self.target = target;
        self
    }

    /// Returns the tower service, for a server of your own. Open streams of KEDA keep such a server from ending: give it a deadline.
    pub fn into_service(self) -> ExternalScalerServer<impl ExternalScaler> {
        ExternalScalerServer::from_arc(Arc::new(self))
    }

    /// Returns the token that ends all streams.
    pub(super) fn closing(&self) -> CancellationToken {
        self.closing.clone()
    }

    async fn desired(&self, object: &ScaledObjectRef) -> Result<(Asked, Desired), Status> {
        let asked = Asked::of(object, self.target)?;
        let (_, desired) = desired(&self.snapshots, &asked).await?;
        Ok((asked, desired))
    }
}

/// Returns the workers that a queue needs, and when that was found.
pub(super) async fn desired(snapshots: &Snapshots, asked: &Asked) -> Result<(Instant, Desired), Status> {
    let snapshot = snapshots.latest().await.map_err(|error| Status::unavailable(error.reason))?;
    if let Some(error) = snapshot.unreadable.get(&asked.queue) {
        return Err(Status::unavailable(error));
    }
    let desired = asked.target.desired(&snapshot, &asked.queue).map(|desired| (snapshot.taken, desired));
    desired.ok_or_else(|| Status::not_found(format!("there is no queue `{}`", asked.queue)))
}

#[async_trait]
impl ExternalScaler for Scaler {
    type StreamIsActiveStream = Activity;

    async fn is_active(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<IsActiveResponse>, Status> {
        let (_, desired) = self.desired(request.get_ref()).await?;
        Ok(Response::new(IsActiveResponse { result: desired.workers() > 0 }))
    }

    async fn stream_is_active(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<Activity>, Status> {
        let asked = Asked::of(request.get_ref(), self.target)?;
        Ok(Response::new(activity(self.snapshots.clone(), asked, self.closing())))
    }

    async fn get_metric_spec(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<GetMetricSpecResponse>, Status> {
        let asked = Asked::of(request.get_ref(), self.target)?;
        let spec = MetricSpec { metric_name: asked.metric(), target_size: 1, target_size_float: 1.0 };
        Ok(Response::new(GetMetricSpecResponse { metric_specs: vec![spec] }))
    }

    async fn get_metrics(
        &self,
        request: Request<GetMetricsRequest>,
    ) -> Result<Response<GetMetricsResponse>, Status> {
        let object = request.into_inner().scaled_object_ref.unwrap_or_default();
        let (asked, desired) = self.desired(&object).await?;
        let value = MetricValue {
            metric_name: asked.metric(),
            metric_value: i64::try_from(desired.workers()).unwrap_or(i64::MAX),
            metric_value_float: desired.load(),
        };
        Ok(Response::new(GetMetricsResponse { metric_values: vec![value] }))
    }
}
