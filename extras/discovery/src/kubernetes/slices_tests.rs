//! Tests of the addresses that follow from `EndpointSlices`, as an API server sends them (discovery.k8s.io/v1).

use super::*;
use serde_json::{Value, json};

/// An endpoint of a pod with its conditions: ready, serving, terminating.
fn pod(name: &str, address: &str, conditions: [Option<bool>; 3]) -> Value {
    let [ready, serving, terminating] = conditions;
    json!({
        "addresses": [address],
        "conditions": { "ready": ready, "serving": serving, "terminating": terminating },
        "targetRef": { "kind": "Pod", "name": name, "namespace": "ai" },
    })
}

const READY: [Option<bool>; 3] = [Some(true), Some(true), Some(false)];
const STARTING: [Option<bool>; 3] = [Some(false), Some(false), Some(false)];
const TERMINATING: [Option<bool>; 3] = [Some(false), Some(true), Some(true)];

fn slice(name: &str, family: &str, ports: &Value, endpoints: &Value) -> EndpointSlice {
    serde_json::from_value(json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": { "name": name, "labels": { "kubernetes.io/service-name": "vllm" } },
        "addressType": family,
        "ports": ports,
        "endpoints": endpoints,
    }))
    .unwrap()
}

fn http_port() -> Value {
    json!([{ "name": "http", "port": 8000, "protocol": "TCP" }])
}

fn slices_from_list(
    port: Option<PodPort>,
    listed: impl IntoIterator<Item = EndpointSlice>,
) -> EndpointSlices {
    let mut slices = EndpointSlices::new(port);
    assert!(!slices.apply(Event::Init));
    for slice in listed {
        assert!(
            !slices.apply(Event::InitApply(slice)),
            "an incomplete list changes nothing"
        );
    }
    assert!(slices.apply(Event::InitDone));
    slices
}

fn address_strings(slices: &EndpointSlices) -> Vec<String> {
    slices
        .backends()
        .iter()
        .map(|backend| backend.address.to_string())
        .collect()
}

fn addresses_for_port(port: Option<PodPort>, ports: &Value) -> Vec<String> {
    let endpoints = json!([pod("a", "10.0.0.1", READY)]);
    address_strings(&slices_from_list(
        port,
        [slice("x", "IPv4", ports, &endpoints)],
    ))
}

#[test]
fn backends_have_the_names_of_their_pods() {
    let endpoints = json!([pod("vllm-7c9-x", "10.0.0.1", READY)]);
    let slices = slices_from_list(None, [slice("x", "IPv4", &http_port(), &endpoints)]);
    assert_eq!(slices.backends()[0].pod.as_deref(), Some("vllm-7c9-x"));
}

#[test]
fn the_endpoint_slices_of_a_service_are_merged() {
    let part = |name, pods: Value| slice(name, "IPv4", &http_port(), &pods);
    let first = part(
        "x",
        json!([pod("b", "10.0.0.2", READY), pod("a", "10.0.0.1", READY)]),
    );
    let second = part(
        "y",
        json!([pod("b", "10.0.0.2", READY), pod("c", "10.0.0.3", READY)]),
    );
    // A service without pods has a slice without endpoints.
    let mut slices = slices_from_list(None, [first, second, part("z", json!(null))]);
    let expected = [
        "http://10.0.0.1:8000",
        "http://10.0.0.2:8000",
        "http://10.0.0.3:8000",
    ];
    assert_eq!(
        address_strings(&slices),
        expected,
        "a pod can be in two slices"
    );
    assert!(slices.apply(Event::Apply(part(
        "x",
        json!([pod("d", "10.0.0.4", READY)])
    ))));
    let expected = [
        "http://10.0.0.2:8000",
        "http://10.0.0.3:8000",
        "http://10.0.0.4:8000",
    ];
    assert_eq!(
        address_strings(&slices),
        expected,
        "b is still in the second slice"
    );
    assert!(slices.apply(Event::Apply(part("y", json!(null)))));
    assert_eq!(address_strings(&slices), ["http://10.0.0.4:8000"]);
}

#[test]
fn addresses_stay_until_a_list_is_complete() {
    let part = |name, address| {
        slice(
            name,
            "IPv4",
            &http_port(),
            &json!([pod(name, address, READY)]),
        )
    };
    let mut slices = slices_from_list(None, [part("x", "10.0.0.1"), part("y", "10.0.0.2")]);
    slices.apply(Event::Init);
    slices.apply(Event::InitApply(part("z", "10.0.0.9")));
    assert_eq!(
        address_strings(&slices),
        ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
    );
    // The list is interrupted and starts again.
    slices.apply(Event::Init);
    slices.apply(Event::InitApply(part("y", "10.0.0.2")));
    slices.apply(Event::InitDone);
    assert_eq!(address_strings(&slices), ["http://10.0.0.2:8000"]);
}

#[test]
fn unready_pods_serve_only_without_ready_ones() {
    let pods = |conditions: &[[Option<bool>; 3]]| {
        let pods = conditions.iter().enumerate();
        let pods = pods.map(|(index, conditions)| {
            pod(
                &format!("p{index}"),
                &format!("10.0.0.{index}"),
                *conditions,
            )
        });
        let all = Value::Array(pods.collect());
        address_strings(&slices_from_list(
            None,
            [slice("x", "IPv4", &http_port(), &all)],
        ))
    };
    let unset = [None; 3];
    // A terminating pod with `publishNotReadyAddresses`.
    let published = [Some(true), Some(false), Some(true)];
    let all = [READY, STARTING, TERMINATING, unset, published];
    assert_eq!(pods(&all), ["http://10.0.0.0:8000", "http://10.0.0.3:8000"]);
    assert_eq!(
        pods(&[TERMINATING, published]),
        [""; 0],
        "terminating pods are always excluded"
    );
    let none_is_ready = pods(&[STARTING, TERMINATING, STARTING]);
    assert_eq!(
        none_is_ready,
        ["http://10.0.0.0:8000", "http://10.0.0.2:8000"],
        "no pod is ready: all are included"
    );
    let without_conditions = json!([{ "addresses": ["10.0.0.7"] }]);
    let slices = slices_from_list(
        None,
        [slice("x", "IPv4", &http_port(), &without_conditions)],
    );
    assert_eq!(
        address_strings(&slices),
        ["http://10.0.0.7:8000"],
        "without conditions: ready"
    );
}

#[test]
fn a_dual_stack_pod_is_one_backend() {
    let v4 = json!([pod("a", "10.0.0.1", READY)]);
    let v6 = json!([pod("a", "fd00::1", READY), pod("b", "fd00::2", READY)]);
    let parts = [
        slice("six", "IPv6", &http_port(), &v6),
        slice("four", "IPv4", &http_port(), &v4),
    ];
    let mut slices = slices_from_list(None, parts);
    assert_eq!(
        address_strings(&slices),
        ["http://10.0.0.1:8000", "http://[fd00::2]:8000"]
    );
    slices.apply(Event::Delete(slice(
        "four",
        "IPv4",
        &http_port(),
        &json!(null),
    )));
    assert_eq!(
        address_strings(&slices),
        ["http://[fd00::1]:8000", "http://[fd00::2]:8000"]
    );
}

#[test]
fn the_port_is_the_only_or_selected_one() {
    let named = |name: &str| Some(PodPort::Name(name.to_owned()));
    let two = json!([
        { "name": "metrics", "port": 9000, "protocol": "TCP" },
        { "name": "http", "port": 8000, "protocol": "TCP" },
    ]);
    let none = [""; 0];
    assert_eq!(
        addresses_for_port(None, &http_port()),
        ["http://10.0.0.1:8000"]
    );
    assert_eq!(
        addresses_for_port(None, &two),
        none,
        "the port is ambiguous"
    );
    assert_eq!(
        addresses_for_port(named("http"), &two),
        ["http://10.0.0.1:8000"]
    );
    assert_eq!(addresses_for_port(named("grpc"), &two), none);
    assert_eq!(
        addresses_for_port(Some(PodPort::Number(9000)), &two),
        ["http://10.0.0.1:9000"]
    );
    assert_eq!(
        addresses_for_port(Some(PodPort::Number(7000)), &json!(null)),
        ["http://10.0.0.1:7000"]
    );
    let udp_and_unnamed = json!([
        { "name": "quic", "port": 8000, "protocol": "UDP" }, { "name": "", "port": 8001 },
    ]);
    assert_eq!(
        addresses_for_port(None, &udp_and_unnamed),
        ["http://10.0.0.1:8001"]
    );
    assert_eq!(addresses_for_port(named("quic"), &udp_and_unnamed), none);
    let unset_number = json!([{ "name": "http", "port": null }]);
    assert_eq!(addresses_for_port(named("http"), &unset_number), none);
    let tls = json!([{ "name": "http", "port": 8443, "appProtocol": "https" }]);
    for port in [None, named("http"), Some(PodPort::Number(8443))] {
        assert_eq!(addresses_for_port(port, &tls), ["https://10.0.0.1:8443"]);
    }
}

#[test]
fn invalid_pod_addresses_in_endpoint_slices_are_skipped() {
    let pods = json!([
        { "addresses": [] }, { "addresses": ["a b"] }, { "addresses": ["10.0.0.1", "10.0.0.2"] },
    ]);
    let slices = slices_from_list(None, [slice("x", "IPv4", &http_port(), &pods)]);
    assert_eq!(address_strings(&slices), ["http://10.0.0.1:8000"]);
    let names = slices_from_list(
        None,
        [slice(
            "x",
            "FQDN",
            &http_port(),
            &json!([{ "addresses": ["a.ai"] }]),
        )],
    );
    assert_eq!(address_strings(&names), ["http://a.ai:8000"]);
}
