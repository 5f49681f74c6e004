//! Slices as an API server writes them (discovery.k8s.io/v1), and which replicas they mean.

use super::*;
use serde_json::{Value, json};

/// A pod with its address, and its conditions: ready, serving, terminating.
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
const ENDING: [Option<bool>; 3] = [Some(false), Some(true), Some(true)];

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

fn http() -> Value {
    json!([{ "name": "http", "port": 8000, "protocol": "TCP" }])
}

fn listed(port: Option<Port>, all: impl IntoIterator<Item = EndpointSlice>) -> Slices {
    let mut slices = Slices::new(port);
    assert!(!slices.take(Event::Init));
    for slice in all {
        assert!(!slices.take(Event::InitApply(slice)), "a list that is not over tells nothing");
    }
    assert!(slices.take(Event::InitDone));
    slices
}

fn replicas(slices: &Slices) -> Vec<String> {
    slices.replicas().iter().map(ToString::to_string).collect()
}

fn of_ports(port: Option<Port>, ports: &Value) -> Vec<String> {
    let endpoints = json!([pod("a", "10.0.0.1", READY)]);
    replicas(&listed(port, [slice("x", "IPv4", ports, &endpoints)]))
}

#[test]
fn the_slices_of_a_service_are_one_list_and_each_is_told_anew() {
    let part = |name, pods: Value| slice(name, "IPv4", &http(), &pods);
    let first = part("x", json!([pod("b", "10.0.0.2", READY), pod("a", "10.0.0.1", READY)]));
    let second = part("y", json!([pod("b", "10.0.0.2", READY), pod("c", "10.0.0.3", READY)]));
    let mut slices = listed(None, [first, second]);
    let expected = ["http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://10.0.0.3:8000"];
    assert_eq!(replicas(&slices), expected, "one that moves stands in two of them");
    assert!(slices.take(Event::Apply(part("x", json!([pod("d", "10.0.0.4", READY)])))));
    let expected = ["http://10.0.0.2:8000", "http://10.0.0.3:8000", "http://10.0.0.4:8000"];
    assert_eq!(replicas(&slices), expected);
    assert!(slices.take(Event::Delete(part("y", json!(null)))));
    assert_eq!(replicas(&slices), ["http://10.0.0.4:8000"]);
    // A service without pods has a slice without endpoints.
    assert!(slices.take(Event::Apply(part("x", json!(null)))));
    assert_eq!(replicas(&slices), [""; 0]);
}

#[test]
fn what_is_known_stands_until_a_new_list_is_over() {
    let part = |name, address| slice(name, "IPv4", &http(), &json!([pod(name, address, READY)]));
    let mut slices = listed(None, [part("x", "10.0.0.1"), part("y", "10.0.0.2")]);
    slices.take(Event::Init);
    slices.take(Event::InitApply(part("z", "10.0.0.9")));
    assert_eq!(replicas(&slices), ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]);
    // The list breaks off, and begins again.
    slices.take(Event::Init);
    slices.take(Event::InitApply(part("y", "10.0.0.2")));
    slices.take(Event::InitDone);
    assert_eq!(replicas(&slices), ["http://10.0.0.2:8000"]);
}

#[test]
fn a_pod_that_is_not_ready_or_ends_gets_nothing() {
    let pods = |conditions: &[[Option<bool>; 3]]| {
        let pods = conditions.iter().enumerate();
        let pods =
            pods.map(|(index, it)| pod(&format!("p{index}"), &format!("10.0.0.{index}"), *it));
        let all = Value::Array(pods.collect());
        replicas(&listed(None, [slice("x", "IPv4", &http(), &all)]))
    };
    let unsaid = [None; 3];
    // What `publishNotReadyAddresses` makes of one that ends.
    let published = [Some(true), Some(false), Some(true)];
    let all = [READY, STARTING, ENDING, unsaid, published];
    assert_eq!(pods(&all), ["http://10.0.0.0:8000", "http://10.0.0.3:8000"]);
    assert_eq!(pods(&[ENDING, published]), [""; 0], "nobody who ends is asked, ever");
    let none_is_ready = pods(&[STARTING, ENDING, STARTING]);
    assert_eq!(
        none_is_ready,
        ["http://10.0.0.0:8000", "http://10.0.0.2:8000"],
        "then all are asked"
    );
    let without = json!([{ "addresses": ["10.0.0.7"] }]);
    let slices = listed(None, [slice("x", "IPv4", &http(), &without)]);
    assert_eq!(replicas(&slices), ["http://10.0.0.7:8000"], "no conditions: ready");
}

#[test]
fn a_pod_with_two_kinds_of_address_is_one_replica() {
    let v4 = json!([pod("a", "10.0.0.1", READY)]);
    let v6 = json!([pod("a", "fd00::1", READY), pod("b", "fd00::2", READY)]);
    let parts = [slice("six", "IPv6", &http(), &v6), slice("four", "IPv4", &http(), &v4)];
    let mut slices = listed(None, parts);
    assert_eq!(replicas(&slices), ["http://10.0.0.1:8000", "http://[fd00::2]:8000"]);
    slices.take(Event::Delete(slice("four", "IPv4", &http(), &json!(null))));
    assert_eq!(replicas(&slices), ["http://[fd00::1]:8000", "http://[fd00::2]:8000"]);
}

#[test]
fn a_port_is_the_only_one_or_has_a_name_or_a_number() {
    let named = |name: &str| Some(Port::Name(name.to_owned()));
    let two = json!([
        { "name": "metrics", "port": 9000, "protocol": "TCP" },
        { "name": "http", "port": 8000, "protocol": "TCP" },
    ]);
    let none = [""; 0];
    assert_eq!(of_ports(None, &http()), ["http://10.0.0.1:8000"]);
    assert_eq!(of_ports(None, &two), none, "which of them?");
    assert_eq!(of_ports(named("http"), &two), ["http://10.0.0.1:8000"]);
    assert_eq!(of_ports(named("grpc"), &two), none);
    assert_eq!(of_ports(Some(Port::Number(9000)), &two), ["http://10.0.0.1:9000"]);
    assert_eq!(of_ports(Some(Port::Number(7000)), &json!(null)), ["http://10.0.0.1:7000"]);
    let datagrams = json!([
        { "name": "quic", "port": 8000, "protocol": "UDP" }, { "name": "", "port": 8001 },
    ]);
    assert_eq!(of_ports(None, &datagrams), ["http://10.0.0.1:8001"]);
    assert_eq!(of_ports(named("quic"), &datagrams), none);
    let nothing = json!([{ "name": "http", "port": null }]);
    assert_eq!(of_ports(named("http"), &nothing), none);
    let tls = json!([{ "name": "http", "port": 8443, "appProtocol": "https" }]);
    for port in [None, named("http"), Some(Port::Number(8443))] {
        assert_eq!(of_ports(port, &tls), ["https://10.0.0.1:8443"]);
    }
}

#[test]
fn what_is_no_address_is_left_out() {
    let pods = json!([
        { "addresses": [] }, { "addresses": ["a b"] }, { "addresses": ["10.0.0.1", "10.0.0.2"] },
    ]);
    let slices = listed(None, [slice("x", "IPv4", &http(), &pods)]);
    assert_eq!(replicas(&slices), ["http://10.0.0.1:8000"]);
    let names = listed(None, [slice("x", "FQDN", &http(), &json!([{ "addresses": ["a.ai"] }]))]);
    assert_eq!(replicas(&names), ["http://a.ai:8000"]);
}
