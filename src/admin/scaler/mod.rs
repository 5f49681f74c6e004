//! The external push scaler for KEDA, the Kubernetes autoscaler. KEDA scales the backends of a model by the
//! number of requests for the model.

mod messages;
mod streams;

use super::state::Admin;
use axum::Extension;
use axum::body::Body;
use axum::extract::{ConnectInfo, Path, Request, State};
use axum::response::Response;
use futures_util::{Stream, stream};
use messages::{GetMetricsRequest, IsActiveResponse, MetricsResponse, ScaledObjectRef};
use std::future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use streams::ScalerPermit;
use tokenweir_protocol::limits::client_network;
use tonic::Status;
use tonic::server::Grpc;
use tonic_prost::ProstCodec;
use tower::service_fn;

pub use streams::MAX_SCALER_STREAMS;
pub(super) use streams::ScalerStreams;

/// Time between two checks for requests of a model while KEDA keeps a `StreamIsActive` stream open.
const WATCH_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum size of a message from KEDA. A message contains only the few metadata entries of a trigger.
const MAX_MESSAGE_BYTES: usize = 64 << 10;

/// The error for an unknown model. Without this error, a wrong name would look like a model without requests.
const UNKNOWN_MODEL: &str = "neither `models` of the configuration nor a backend names the model";

/// Serves one gRPC call of KEDA to the external scaler.
pub(super) async fn call(
    State(admin): State<Arc<Admin>>,
    Extension(streams): Extension<Arc<ScalerStreams>>,
    Path(method): Path<String>,
    request: Request,
) -> Response {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let client = peer.map(|ConnectInfo(address)| client_network(address.ip()));
    let count = move |object: &ScaledObjectRef| {
        let requests = admin.model_requests(object.model()?);
        requests.ok_or_else(|| Status::not_found(UNKNOWN_MODEL))
    };
    let response = match method.as_str() {
        "IsActive" => {
            let is_active = |object: ScaledObjectRef| {
                Ok(IsActiveResponse {
                    result: count(&object)? > 0,
                })
            };
            unary(request, is_active).await
        }
        "StreamIsActive" => {
            let watch = move |request: tonic::Request<ScaledObjectRef>| {
                let object = request.into_inner();
                let count = count.clone();
                let permit = streams.open(client);
                async {
                    let is_active = move || count(&object).map(|requests| requests > 0);
                    Ok(tonic::Response::new(changes(is_active, permit)))
                }
            };
            server().server_streaming(service_fn(watch), request).await
        }
        "GetMetricSpec" => {
            unary(request, |object: ScaledObjectRef| {
                Ok(MetricsResponse::new(object.target()?))
            })
            .await
        }
        "GetMetrics" => {
            let value = |request: GetMetricsRequest| {
                let object = request.scaled_object_ref.unwrap_or_default();
                Ok(MetricsResponse::new(count(&object)? as f64))
            };
            unary(request, value).await
        }
        // KEDA does not need its other methods: after `unimplemented`, it continues without them.
        _ => Status::unimplemented("not a method of this scaler").into_http(),
    };
    response.map(Body::new)
}

/// Answers a call with one message in each direction.
async fn unary<Q, A>(
    request: Request,
    answer: impl Fn(Q) -> Result<A, Status>,
) -> http::Response<tonic::body::Body>
where
    Q: prost::Message + Default + 'static,
    A: prost::Message + Default + 'static,
{
    let serve = |request: tonic::Request<Q>| {
        future::ready(answer(request.into_inner()).map(tonic::Response::new))
    };
    server().unary(service_fn(serve), request).await
}

fn server<Q, A>() -> Grpc<ProstCodec<A, Q>>
where
    Q: prost::Message + Default + Send + 'static,
    A: prost::Message + Default + Send + 'static,
{
    Grpc::new(ProstCodec::default()).apply_max_message_size_config(Some(MAX_MESSAGE_BYTES), None)
}

/// Returns a stream that states whether the model has requests: at the start, and again at each change. The
/// stream holds `permit` while it is open. It ends if `is_active` fails or another stream replaces it.
fn changes(
    is_active: impl Fn() -> Result<bool, Status> + Send + 'static,
    permit: ScalerPermit,
) -> impl Stream<Item = Result<IsActiveResponse, Status>> + Send {
    stream::try_unfold(
        (is_active, permit, None),
        |(is_active, permit, last)| async move {
            loop {
                if permit.is_replaced() {
                    return Err(Status::resource_exhausted("a new stream replaced this one"));
                }
                let result = is_active()?;
                if last != Some(result) {
                    return Ok(Some((
                        IsActiveResponse { result },
                        (is_active, permit, Some(result)),
                    )));
                }
                tokio::time::sleep(WATCH_INTERVAL).await;
            }
        },
    )
}
