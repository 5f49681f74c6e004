//! Replicas that Kubernetes tells of: what is heard of its API server, whatever it does, and what
//! clients notice of pods that come and go.

use crate::restart::{Port, fleet, folder, model, replicas};
use crate::support::api_server::{ApiServer, listed, slice, status};
use crate::support::process::{Load, Outcomes, Process};
use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};
use tokenweir::discovery::Source;
use tokenweir::discovery::kubernetes::{self, Service, WatchedService};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// What a gateway would hear.
struct Heard {
    news: mpsc::UnboundedReceiver<Vec<String>>,
    listening: JoinHandle<()>,
}

impl Heard {
    async fn of(server: &ApiServer) -> Self {
        let port = Some(kubernetes::Port::Name("http".to_owned()));
        let service = Service { name: "vllm".into(), namespace: Some("ai".into()), port };
        let url = format!("http://{}", server.addr).parse().unwrap();
        let mut service = WatchedService::new(service, Some(url)).await.unwrap();
        let (sender, news) = mpsc::unbounded_channel();
        let listening = tokio::spawn(async move {
            loop {
                let found = service.changed().await;
                let found = found.iter().map(|address| address.authority().to_owned()).collect();
                if sender.send(found).is_err() {
                    return;
                }
            }
        });
        Self { news, listening }
    }

    /// The ports of the replicas that are told next.
    async fn ports(&mut self) -> Vec<u16> {
        let next = tokio::time::timeout(Duration::from_secs(20), self.news.recv()).await;
        let found = next.expect("news").unwrap();
        found.iter().map(|host| host.strip_prefix("127.0.0.1:").unwrap().parse().unwrap()).collect()
    }

    fn is_silent(&mut self) -> bool {
        self.news.try_recv().is_err()
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

#[tokio::test]
async fn the_slices_of_a_service_are_listed_and_then_watched() {
    let mut server = ApiServer::start().await;
    let mut heard = Heard::of(&server).await;
    let asked = server.asked().await;
    let path = "/apis/discovery.k8s.io/v1/namespaces/ai/endpointslices?";
    assert!(asked.target.starts_with(path), "{}", asked.target);
    assert_eq!(asked.query("labelSelector"), Some("kubernetes.io%2Fservice-name%3Dvllm"));
    let slices = [slice("a", 3, 1, Some(true)), slice("b", 4, 2, Some(true))];
    asked.answer(200, &listed(10, &slices)).await;
    assert_eq!(heard.ports().await, [1, 2]);
    let asked = server.asked().await;
    assert_eq!((asked.is_watch(), asked.version()), (true, Some(10)));
    assert_eq!(asked.query("allowWatchBookmarks"), Some("true"));
    let mut watch = asked.go_on().await;
    watch.tell("ADDED", &slice("c", 11, 3, Some(true))).await;
    assert_eq!(heard.ports().await, [1, 2, 3]);
    watch.tell("MODIFIED", &slice("a", 12, 1, Some(false))).await;
    assert_eq!(heard.ports().await, [2, 3], "not ready");
    watch.tell("MODIFIED", &slice("b", 13, 2, None)).await;
    assert_eq!(heard.ports().await, [3], "terminating");
    watch.tell("MODIFIED", &slice("a", 14, 1, Some(true))).await;
    assert_eq!(heard.ports().await, [1, 3]);
    watch.tell("DELETED", &slice("b", 15, 2, None)).await;
    watch.tell("DELETED", &slice("c", 16, 3, Some(true))).await;
    assert_eq!(heard.ports().await, [1], "that one that ended is gone is no news");
    watch.tell("DELETED", &slice("a", 17, 1, Some(true))).await;
    assert_eq!(heard.ports().await, [0; 0], "no pods, no replicas");
}

/// A list may come in parts.
#[tokio::test]
async fn a_list_is_news_when_all_of_it_is_there() {
    let mut server = ApiServer::start().await;
    let mut heard = Heard::of(&server).await;
    let mut first = listed(10, &[slice("a", 3, 1, Some(true))]);
    first["metadata"]["continue"] = "more".into();
    server.asked().await.answer(200, &first).await;
    let asked = server.asked().await;
    assert_eq!(asked.query("continue"), Some("more"));
    assert!(heard.is_silent());
    asked.answer(200, &listed(10, &[slice("b", 4, 2, Some(true))])).await;
    assert_eq!(heard.ports().await, [1, 2]);
}

#[tokio::test]
async fn a_service_without_pods_is_known_to_have_none() {
    let mut server = ApiServer::start().await;
    let mut heard = Heard::of(&server).await;
    server.list(10, &[]).await;
    assert_eq!(heard.ports().await, [0; 0]);
}

#[tokio::test]
async fn a_watch_that_breaks_goes_on_from_where_it_was() {
    let mut server = ApiServer::start().await;
    let mut heard = Heard::of(&server).await;
    server.list(10, &[slice("a", 3, 1, Some(true))]).await;
    assert_eq!(heard.ports().await, [1]);
    // It ends, as all do after a while; a bookmark says how far it was.
    let mut watch = server.watch(10).await;
    watch.bookmark(20).await;
    watch.end().await;
    // It is cut in the middle of an event.
    let mut watch = server.watch(20).await;
    watch.tell("ADDED", &slice("b", 21, 2, Some(true))).await;
    assert_eq!(heard.ports().await, [1, 2]);
    watch.send("{\"type\":\"DELETED\",\"object\":{\"kind\":\"Endp").await;
    drop(watch);
    // What cannot be understood is no event.
    let mut watch = server.watch(21).await;
    watch.send("<html>busy</html>\n").await;
    watch.end().await;
    let mut watch = server.watch(21).await;
    watch.tell("DELETED", &slice("a", 22, 1, Some(true))).await;
    assert_eq!(heard.ports().await, [2], "nothing was told in between");
}

#[tokio::test]
async fn a_watch_whose_place_is_forgotten_begins_with_a_list() {
    let mut server = ApiServer::start().await;
    let mut heard = Heard::of(&server).await;
    let slices = [slice("a", 3, 1, Some(true)), slice("b", 4, 2, Some(true))];
    server.list(10, &slices).await;
    assert_eq!(heard.ports().await, [1, 2]);
    // As servers say it: in the stream, or as the status of the answer.
    let mut watch = server.watch(10).await;
    watch.tell("ERROR", &status(410, "Expired")).await;
    let asked = server.asked().await;
    assert!(!asked.is_watch() && heard.is_silent(), "what is known stays: {}", asked.target);
    asked.answer(200, &listed(30, &slices)).await;
    let asked = server.asked().await;
    assert_eq!((asked.version(), heard.is_silent()), (Some(30), true), "the same is no news");
    asked.answer(410, &status(410, "Expired")).await;
    server.list(40, &slices[1..]).await;
    assert_eq!(heard.ports().await, [2]);
    server.watch(40).await;
}

#[tokio::test]
async fn while_the_api_server_is_away_or_refuses_what_is_known_stays() {
    let mut server = ApiServer::start().await;
    let mut heard = Heard::of(&server).await;
    server.list(10, &[slice("a", 3, 1, Some(true))]).await;
    assert_eq!(heard.ports().await, [1]);
    let watch = server.watch(10).await;
    server.stop().await;
    drop(watch);
    server.restart().await;
    drop(server.asked().await);
    server.asked().await.answer(403, &status(403, "Forbidden")).await;
    let mut watch = server.watch(10).await;
    assert!(heard.is_silent());
    watch.tell("ADDED", &slice("b", 50, 2, Some(true))).await;
    assert_eq!(heard.ports().await, [1, 2]);
}

#[tokio::test]
async fn an_api_server_that_is_not_there_at_first_is_waited_for() {
    let mut server = ApiServer::start().await;
    server.stop().await;
    let mut heard = Heard::of(&server).await;
    server.restart().await;
    server.asked().await.answer(401, &status(401, "Unauthorized")).await;
    server.list(10, &[slice("a", 3, 1, Some(true))]).await;
    assert_eq!(heard.ports().await, [1]);
}

/// A proxy before the API server may not let watches through.
#[tokio::test]
async fn a_server_that_ends_each_watch_at_once_is_asked_five_times_a_second_at_most() {
    let mut server = ApiServer::start().await;
    let _heard = Heard::of(&server).await;
    server.list(10, &[]).await;
    let began = Instant::now();
    for _ in 0..16 {
        server.watch(10).await.end().await;
    }
    let took = began.elapsed();
    assert!(took > Duration::from_secs(2), "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_come_and_go_and_no_request_is_lost() {
    let (port, backends) = (Port::reserve(), replicas(3).await);
    let file = folder("kubernetes").join("gateway.yaml");
    let mut server = ApiServer::start().await;
    let source = format!(
        "discovery: [{{ kubernetes: {{ service: vllm, namespace: ai, url: 'http://{}' }} }}]\n",
        server.addr
    );
    fs::write(&file, format!("listen: {}\nlisten_reuse_port: true\n{source}", port.addr)).unwrap();
    let pod = |index: usize, version, is_ready| {
        slice(&format!("vllm-{index}"), version, backends[index].port(), is_ready)
    };
    let starting = tokio::spawn({
        let file = file.clone();
        async move { Process::start(&file).await }
    });
    server.list(10, &[pod(0, 1, Some(true)), pod(1, 2, Some(true))]).await;
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
        watch.tell(kind, &object).await;
        let names: BTreeSet<String> =
            expected.into_iter().map(|index: usize| backends[index].to_string()).collect();
        while fleet(&gateway).await != names {
            tokio::task::yield_now().await;
        }
        load.goes_on(50).await;
    }
    server.stop().await;
    drop(watch);
    load.goes_on(100).await;
    let Outcomes { served, failed } = load.end().await;
    eprintln!("pods came and went: {served} requests served, {} failed", failed.len());
    assert!(failed.is_empty(), "{} of {served}: {failed:?}", failed.len());
}
