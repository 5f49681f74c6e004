//! The reference proxy: the minimum work of a proxy built on hyper. It reads a request, forwards it
//! over a pooled connection and passes the response back frame by frame.

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::TcpListener;
use tokio::runtime;

/// The environment variable that makes this program the reference proxy: the addresses of its
/// backends, separated by commas.
pub(crate) const BACKENDS: &str = "PASSTHROUGH_FLOOR";

type Upstream = Client<HttpConnector, Incoming>;

/// The environment variable with the number of cores of the reference proxy.
pub(crate) const CORES: &str = "PASSTHROUGH_FLOOR_CORES";

/// Serves until it is killed, with round robin over the backends. The first line of its output is
/// its address. On one core, a runtime of one thread costs less than a pool of one worker.
pub(crate) fn run(backends: &str, is_one_core: bool) {
    let backends: Vec<SocketAddr> = backends.split(',').map(|at| at.parse().unwrap()).collect();
    let turn = AtomicUsize::new(0);
    let next = move || backends[turn.fetch_add(1, Ordering::Relaxed) % backends.len()];
    let next: Arc<dyn Fn() -> SocketAddr + Send + Sync> = Arc::new(next);
    let mut builder = if is_one_core {
        runtime::Builder::new_current_thread()
    } else {
        runtime::Builder::new_multi_thread()
    };
    let runtime = builder.enable_all().build().unwrap();
    runtime.block_on(async {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let upstream: Upstream = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .build(connector);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("{}", listener.local_addr().unwrap());
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            let (upstream, next) = (upstream.clone(), Arc::clone(&next));
            let pass = service_fn(move |request| pass(upstream.clone(), next(), request));
            tokio::spawn(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), pass),
            );
        }
    });
}

async fn pass(
    upstream: Upstream,
    backend: SocketAddr,
    mut request: Request<Incoming>,
) -> Result<
    Response<impl hyper::body::Body<Data = hyper::body::Bytes, Error = hyper::Error>>,
    hyper_util::client::legacy::Error,
> {
    *request.uri_mut() = Uri::builder()
        .scheme("http")
        .authority(backend.to_string())
        .path_and_query(request.uri().path())
        .build()
        .unwrap();
    Ok(upstream
        .request(request)
        .await?
        .map(|body| body.map_frame(|frame| frame)))
}
