//! Kubernetes discovery: which backends it reports when the API server behaves unusually, and that clients
//! notice nothing when pods change.

use crate::restart::{Port, fleet, model, start_backends};
use crate::support::kubernetes_api_server::{KubernetesApiServer, list_of, listed, slice, status};
use crate::support::process::{GatewayProcess, Load, folder};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tokenweir_discovery::DiscoveryChange;
use tokenweir_discovery::kubernetes::ServiceWatcher;
use tokenweir_discovery::kubernetes_settings::{KubernetesConfig, PodPort};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Receives the address lists that discovery reports to a gateway.
struct AddressUpdates {
    received: mpsc::UnboundedReceiver<Vec<String>>,
    listening: JoinHandle<()>,
}

impl AddressUpdates {
    async fn watch(server: &KubernetesApiServer) -> Self {
        let port = Some(PodPort::Name("http".to_owned()));
        Self::watch_by(server, false, port).await
    }

    async fn watch_by(server: &KubernetesApiServer, is_pool: bool, port: Option<PodPort>) -> Self {
        let name = Some("vllm".to_owned());
        let (service, pool) = if is_pool { (None, name) } else { (name, None) };
        let (namespace, url) = (Some("ai".into()), Some(format!("http://{}", server.addr)));
        let settings = KubernetesConfig {
            service,
            pool,
            namespace,
            port,
            url,
        };
        let mut service = ServiceWatcher::new(settings).await.unwrap();
        let (sender, received) = mpsc::unbounded_channel();
        let listening = tokio::spawn(async move {
            loop {
                let DiscoveryChange::Backends(addresses) = service.changed().await else {
                    continue;
                };
                let addresses = addresses
                    .iter()
                    .map(|found| found.address.authority().to_owned())
                    .collect();
                if sender.send(addresses).is_err() {
                    return;
                }
            }
        });
        Self {
            received,
            listening,
        }
    }

    /// Waits for the next address list. Returns the ports of the backends in it.
    async fn ports(&mut self) -> Vec<u16> {
        let next = tokio::time::timeout(Duration::from_secs(20), self.received.recv()).await;
        let addresses = next.expect("an update within the timeout").unwrap();
        addresses
            .iter()
            .map(|host| host.strip_prefix("127.0.0.1:").unwrap().parse().unwrap())
            .collect()
    }

    fn has_no_update(&mut self) -> bool {
        self.received.try_recv().is_err()
    }
}

impl Drop for AddressUpdates {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

/// Starts an API server, and a discovery that watches a service there. Returns the server and the updates of
/// the discovery.
async fn watched_server() -> (KubernetesApiServer, AddressUpdates) {
    let server = KubernetesApiServer::start();
    let updates = AddressUpdates::watch(&server).await;
    (server, updates)
}

#[tokio::test]
async fn endpoint_slices_are_listed_and_watched() {
    let (mut server, mut updates) = watched_server().await;
    let request = server.asked().await;
    let path = "/apis/discovery.k8s.io/v1/namespaces/ai/endpointslices?";
    assert!(request.target.starts_with(path), "{}", request.target);
    assert_eq!(
        request.query("labelSelector"),
        Some("kubernetes.io%2Fservice-name%3Dvllm")
    );
    // The API server may send a list in pages. The list is applied when all its pages have arrived.
    let mut first = listed(10, &[slice("a", 3, 1, Some(true))]);
    first["metadata"]["continue"] = "more".into();
    request.answer(200, &first).await;
    let request = server.asked().await;
    assert_eq!(request.query("continue"), Some("more"));
    assert!(updates.has_no_update());
    request
        .answer(200, &listed(10, &[slice("b", 4, 2, Some(true))]))
        .await;
    assert_eq!(updates.ports().await, [1, 2]);
    let request = server.asked().await;
    assert_eq!((request.is_watch(), request.version()), (true, Some(10)));
    assert_eq!(request.query("allowWatchBookmarks"), Some("true"));
    let mut watch = request.start_stream().await;
    watch.send("ADDED", &slice("c", 11, 3, Some(true))).await;
    assert_eq!(updates.ports().await, [1, 2, 3]);
    watch
        .send("MODIFIED", &slice("a", 12, 1, Some(false)))
        .await;
    assert_eq!(updates.ports().await, [2, 3], "not ready");
    watch.send("MODIFIED", &slice("b", 13, 2, None)).await;
    assert_eq!(updates.ports().await, [3], "terminating");
    watch.send("MODIFIED", &slice("a", 14, 1, Some(true))).await;
    assert_eq!(updates.ports().await, [1, 3]);
    watch.send("DELETED", &slice("b", 15, 2, None)).await;
    watch.send("DELETED", &slice("c", 16, 3, Some(true))).await;
    assert_eq!(
        updates.ports().await,
        [1],
        "the removal of a terminating pod is no update"
    );
    watch.send("DELETED", &slice("a", 17, 1, Some(true))).await;
    assert_eq!(updates.ports().await, [0; 0], "no pods, no backends");
}

const POOL_API: &str = "inference.networking.k8s.io/v1";

/// Builds a pod of an `InferencePool`, as the API server describes it.
fn pod(version: u64, address: &str, is_ready: bool) -> Value {
    let status = if is_ready { "True" } else { "False" };
    json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": { "name": format!("pod-{address}"), "resourceVersion": version.to_string() },
        "status": { "podIP": address, "conditions": [{ "type": "Ready", "status": status }] },
    })
}

fn pool(version: u64, app: &str, port: u16) -> Value {
    json!({
        "kind": "InferencePool", "apiVersion": POOL_API,
        "metadata": { "name": "vllm", "namespace": "ai", "resourceVersion": version.to_string() },
        "spec": { "selector": { "matchLabels": { "app": app } }, "targetPorts": [{ "number": port }] },
    })
}

#[tokio::test]
async fn pods_of_an_inference_pool_are_watched() {
    let mut server = KubernetesApiServer::start();
    let mut updates = AddressUpdates::watch_by(&server, true, None).await;
    let request = server.asked().await;
    let path = "/apis/inference.networking.k8s.io/v1/namespaces/ai/inferencepools?";
    assert!(request.target.starts_with(path), "{}", request.target);
    assert_eq!(request.query("fieldSelector"), Some("metadata.name%3Dvllm"));
    request
        .answer(
            200,
            &list_of(POOL_API, "InferencePoolList", 5, &[pool(4, "blue", 1)]),
        )
        .await;
    // Discovery may request the watch of the pool and the list of the pods in any order.
    let mut pool_watch = None;
    let mut lists = 0;
    while pool_watch.is_none() || lists == 0 {
        let request = server.asked().await;
        if request.is_watch() {
            pool_watch = Some(request.start_stream().await);
            continue;
        }
        assert!(
            request.target.starts_with("/api/v1/namespaces/ai/pods?"),
            "{}",
            request.target
        );
        assert_eq!(request.query("labelSelector"), Some("app%3Dblue"));
        let pods = [
            pod(6, "127.0.0.1", true),
            pod(7, "127.0.0.2", false),
            pod(8, "", true),
        ];
        request
            .answer(200, &list_of("v1", "PodList", 9, &pods))
            .await;
        lists += 1;
    }
    assert_eq!(updates.ports().await, [1], "one pod is ready");
    let mut pool_watch = pool_watch.unwrap();
    pool_watch.send("MODIFIED", &pool(10, "green", 2)).await;
    let green = loop {
        let request = server.asked().await;
        if !request.is_watch() {
            break request;
        }
        drop(request);
    };
    assert_eq!(green.query("labelSelector"), Some("app%3Dgreen"));
    green
        .answer(
            200,
            &list_of("v1", "PodList", 11, &[pod(12, "127.0.0.1", true)]),
        )
        .await;
    assert_eq!(
        updates.ports().await,
        [2],
        "the pods of the new selector at the new port"
    );
    pool_watch.send("DELETED", &pool(13, "green", 2)).await;
    assert_eq!(updates.ports().await, [0; 0]);
}

#[tokio::test]
async fn a_broken_watch_resumes_at_its_version() {
    let (mut server, mut updates) = watched_server().await;
    server.list(10, &[slice("a", 3, 1, Some(true))]).await;
    assert_eq!(updates.ports().await, [1]);
    // The API server ends each watch after a while. Shortly before, it sends a bookmark with the resource
    // version at which the next watch must start.
    let mut watch = server.watch(10).await;
    watch.send_bookmark(20).await;
    watch.end().await;
    // The connection of this watch breaks in the middle of an event.
    let mut watch = server.watch(20).await;
    watch.send("ADDED", &slice("b", 21, 2, Some(true))).await;
    assert_eq!(updates.ports().await, [1, 2]);
    watch
        .send_chunk("{\"type\":\"DELETED\",\"object\":{\"kind\":\"Endp")
        .await;
    drop(watch);
    // Discovery ignores lines of a watch that are malformed.
    let mut watch = server.watch(21).await;
    watch.send_chunk("<html>busy</html>\n").await;
    watch.end().await;
    let mut watch = server.watch(21).await;
    watch.send("DELETED", &slice("a", 22, 1, Some(true))).await;
    assert_eq!(updates.ports().await, [2], "no update in between");
}

#[tokio::test]
async fn an_expired_kubernetes_watch_restarts_with_a_list() {
    let (mut server, mut updates) = watched_server().await;
    let slices = [slice("a", 3, 1, Some(true)), slice("b", 4, 2, Some(true))];
    server.list(10, &slices).await;
    assert_eq!(updates.ports().await, [1, 2]);
    // API servers report an expired resource version either as an event in the stream or as the status of the
    // response.
    let mut watch = server.watch(10).await;
    watch.send("ERROR", &status(410, "Expired")).await;
    let request = server.asked().await;
    assert!(
        !request.is_watch() && updates.has_no_update(),
        "the known backends stay: {}",
        request.target
    );
    request.answer(200, &listed(30, &slices)).await;
    let request = server.asked().await;
    assert_eq!(
        (request.version(), updates.has_no_update()),
        (Some(30), true),
        "an equal list is no update"
    );
    request.answer(410, &status(410, "Expired")).await;
    server.list(40, &slices[1..]).await;
    assert_eq!(updates.ports().await, [2]);
    server.watch(40).await;
}

#[tokio::test]
async fn a_failing_api_server_keeps_known_backends() {
    let mut server = KubernetesApiServer::start();
    server.stop().await;
    let mut updates = AddressUpdates::watch(&server).await;
    server.restart();
    server
        .asked()
        .await
        .answer(401, &status(401, "Unauthorized"))
        .await;
    server.list(10, &[slice("a", 3, 1, Some(true))]).await;
    assert_eq!(updates.ports().await, [1]);
    let watch = server.watch(10).await;
    server.stop().await;
    drop(watch);
    server.restart();
    drop(server.asked().await);
    server
        .asked()
        .await
        .answer(403, &status(403, "Forbidden"))
        .await;
    let mut watch = server.watch(10).await;
    assert!(updates.has_no_update());
    watch.send("ADDED", &slice("b", 50, 2, Some(true))).await;
    assert_eq!(updates.ports().await, [1, 2]);
}

/// Such watches occur, for example, if a proxy in front of the API server ends every watch at once.
#[tokio::test]
async fn ending_watches_are_retried_five_times_per_second() {
    let (mut server, mut updates) = watched_server().await;
    server.list(10, &[]).await;
    assert_eq!(
        updates.ports().await,
        [0; 0],
        "a service without pods has no backends"
    );
    let began = Instant::now();
    for _ in 0..16 {
        server.watch(10).await.end().await;
    }
    let took = began.elapsed();
    assert!(took > Duration::from_secs(2), "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_while_kubernetes_discovery_replaces_pods() {
    let (port, backends) = (Port::reserve(), start_backends(3).await);
    let file = folder("kubernetes").join("gateway.yaml");
    let mut server = KubernetesApiServer::start();
    let source = format!(
        "discovery: [{{ kubernetes: {{ service: vllm, namespace: ai, url: 'http://{}' }} }}]\n",
        server.addr
    );
    port.configure(&file, &source);
    let pod = |index: usize, version, is_ready| {
        slice(
            &format!("vllm-{index}"),
            version,
            backends[index].port(),
            is_ready,
        )
    };
    let starting = tokio::spawn({
        let file = file.clone();
        async move { GatewayProcess::start(&file).await }
    });
    server
        .list(10, &[pod(0, 1, Some(true)), pod(1, 2, Some(true))])
        .await;
    let mut watch = server.watch(10).await;
    let gateway = starting.await.unwrap();
    let mut load = Load::start(port.addr, &model(), 4);
    load.goes_on(50).await;
    let events = [
        ("MODIFIED", pod(0, 11, None), vec![1]),
        ("ADDED", pod(2, 12, Some(true)), vec![1, 2]),
        ("DELETED", pod(0, 13, None), vec![1, 2]),
        ("MODIFIED", pod(1, 14, Some(false)), vec![2]),
        ("MODIFIED", pod(1, 15, Some(true)), vec![1, 2]),
    ];
    for (kind, object, expected) in events {
        watch.send(kind, &object).await;
        let names: BTreeSet<String> = expected
            .into_iter()
            .map(|index: usize| backends[index].to_string())
            .collect();
        wait_until!(fleet(&gateway).await == names);
        load.goes_on(50).await;
    }
    server.stop().await;
    drop(watch);
    load.goes_on(100).await;
    load.end().await;
}
