//! Presents the pods of a Kubernetes `InferencePool` as `EndpointSlices`. An `InferencePool` states a
//! label selector of pods and a target port.

use futures_util::stream::{self, BoxStream, Stream, StreamExt};
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use kube::core::GroupVersionKind;
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use serde_json::Value;
use std::collections::VecDeque;

type PodEvents = BoxStream<'static, watcher::Result<Event<Pod>>>;

struct PoolWatch {
    client: Client,
    namespace: String,
    pools: BoxStream<'static, watcher::Result<Event<DynamicObject>>>,
    /// The pods that the pool selects, and the watch of these pods. `None`: the pool is not known
    /// yet.
    selected: Option<(PoolTarget, PodEvents)>,
    /// Events that are returned before further events of the watches are read.
    pending: VecDeque<Event<EndpointSlice>>,
}

/// The pods and the port that an `InferencePool` selects.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PoolTarget {
    /// The label selector of the pods.
    labels: String,
    port: i32,
}

/// Watches the pods of an `InferencePool`. Returns their changes as changes of `EndpointSlices` with one
/// pod each.
pub(super) fn watch_pods(
    client: Client,
    namespace: &str,
    pool: &str,
    timeout_seconds: u32,
) -> BoxStream<'static, watcher::Result<Event<EndpointSlice>>> {
    let kind = GroupVersionKind::gvk("inference.networking.k8s.io", "v1", "InferencePool");
    let resource = ApiResource::from_gvk(&kind);
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &resource);
    let config = watcher::Config::default()
        .fields(&format!("metadata.name={pool}"))
        .timeout(timeout_seconds);
    let watch = PoolWatch {
        client,
        namespace: namespace.to_owned(),
        pools: watcher(api, config).default_backoff().boxed(),
        selected: None,
        pending: VecDeque::new(),
    };
    let next = move |mut watch: PoolWatch| async move {
        let event = watch.next(timeout_seconds).await;
        Some((event, watch))
    };
    stream::unfold(watch, next).boxed()
}

impl PoolWatch {
    async fn next(&mut self, timeout_seconds: u32) -> watcher::Result<Event<EndpointSlice>> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Ok(event);
            }
            let pods = self.selected.as_mut().map(|(_, pods)| pods);
            tokio::select! {
                pool = next_of(Some(&mut self.pools)) => self.on_pool(pool?, timeout_seconds),
                pod = next_of(pods) => {
                    let pod = pod?;
                    if let Some((target, _)) = &self.selected {
                        return Ok(target.slice_event(pod));
                    }
                }
            }
        }
    }

    /// Applies an event of the `InferencePool`: starts a new watch of pods if its labels or its port
    /// have changed.
    fn on_pool(&mut self, event: Event<DynamicObject>, timeout_seconds: u32) {
        let pool = match event {
            Event::Apply(pool) | Event::InitApply(pool) => pool,
            Event::Delete(_) => {
                self.selected = None;
                self.pending.extend([Event::Init, Event::InitDone]);
                return;
            }
            Event::Init | Event::InitDone => return,
        };
        let Some(target) = PoolTarget::read(&pool.data) else {
            let pool = pool.metadata.name.as_deref();
            tracing::warn!(
                pool,
                "the InferencePool has no selector or no target port: ignoring it"
            );
            return;
        };
        if self
            .selected
            .as_ref()
            .is_some_and(|(selected, _)| *selected == target)
        {
            return;
        }
        let api = Api::<Pod>::namespaced(self.client.clone(), &self.namespace);
        let config = watcher::Config::default()
            .labels(&target.labels)
            .timeout(timeout_seconds);
        self.selected = Some((target, watcher(api, config).default_backoff().boxed()));
    }
}

/// The next item of a stream that never ends. If there is no stream, the future never completes.
async fn next_of<S: Stream + Unpin>(stream: Option<&mut S>) -> S::Item {
    match stream {
        Some(stream) => match stream.next().await {
            Some(item) => item,
            // A watcher retries forever, so its stream never ends.
            None => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}

impl PoolTarget {
    /// Reads the labels and the first port of a pool. `None`: the pool has no labels or no port.
    fn read(pool: &Value) -> Option<Self> {
        let labels = pool
            .pointer("/spec/selector/matchLabels")?
            .as_object()?
            .iter();
        let labels = labels.map(|(name, value)| Some(format!("{name}={}", value.as_str()?)));
        let labels = labels.collect::<Option<Vec<_>>>()?.join(",");
        let port = pool.pointer("/spec/targetPorts/0/number")?.as_i64()?;
        let port = i32::try_from(port).ok()?;
        (!labels.is_empty()).then_some(Self { labels, port })
    }

    fn slice_event(&self, event: Event<Pod>) -> Event<EndpointSlice> {
        match event {
            Event::Init => Event::Init,
            Event::InitDone => Event::InitDone,
            Event::InitApply(pod) => Event::InitApply(self.slice(pod)),
            Event::Apply(pod) => Event::Apply(self.slice(pod)),
            Event::Delete(pod) => Event::Delete(self.slice(pod)),
        }
    }

    /// Returns the `EndpointSlice` of one pod. It has no endpoint while the pod has no address.
    fn slice(&self, pod: Pod) -> EndpointSlice {
        let status = pod.status.unwrap_or_default();
        let is_true = |it: &PodCondition| it.type_ == "Ready" && it.status == "True";
        let conditions = EndpointConditions {
            ready: Some(status.conditions.iter().flatten().any(is_true)),
            terminating: Some(pod.metadata.deletion_timestamp.is_some()),
            ..EndpointConditions::default()
        };
        let address = status.pod_ip.unwrap_or_default();
        let is_v6 = address.contains(':');
        let endpoint = |address: String| Endpoint {
            addresses: vec![address],
            conditions: Some(conditions),
            target_ref: Some(k8s_openapi::api::core::v1::ObjectReference {
                name: pod.metadata.name.clone(),
                ..Default::default()
            }),
            ..Endpoint::default()
        };
        EndpointSlice {
            address_type: if is_v6 { "IPv6" } else { "IPv4" }.to_owned(),
            endpoints: Some(
                Some(address)
                    .filter(|it| !it.is_empty())
                    .map(endpoint)
                    .into_iter()
                    .collect(),
            ),
            ports: Some(vec![EndpointPort {
                port: Some(self.port),
                ..EndpointPort::default()
            }]),
            metadata: pod.metadata,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_labels_and_the_first_port_apply() {
        let pool = |spec: Value| PoolTarget::read(&json!({ "spec": spec }));
        let labels = json!({ "matchLabels": { "app": "vllm", "tier": "a" } });
        let found = pool(json!({ "selector": labels, "targetPorts": [{ "number": 8000 }] }));
        assert_eq!(
            found,
            Some(PoolTarget {
                labels: "app=vllm,tier=a".into(),
                port: 8_000
            })
        );
        assert_eq!(pool(json!({ "selector": labels })), None);
        let empty = json!({ "matchLabels": {} });
        assert_eq!(
            pool(json!({ "selector": empty, "targetPorts": [{ "number": 1 }] })),
            None
        );
    }
}
