//! Tests of DNS discovery with a name server on loopback.

use super::*;
use crate::DiscoveryChange;
use crate::dns_watcher::DnsWatcher;
use hickory_resolver::config::{NameServerConfig, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::op::{Message, ResponseCode};
use hickory_resolver::proto::rr::rdata::SRV;
use hickory_resolver::proto::rr::{Name, Record};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::net::UdpSocket;

/// The records of the test name server. `None`: the server responds with SERVFAIL.
type Zone = Option<Vec<RData>>;

/// A name server on loopback that counts its queries.
struct TestNameServer {
    addr: SocketAddr,
    zone: Arc<Mutex<Zone>>,
    query_count: Arc<AtomicUsize>,
}

impl TestNameServer {
    async fn start(zone: Zone) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (zone, query_count) = (Arc::new(Mutex::new(zone)), Arc::new(AtomicUsize::new(0)));
        let server = Self {
            addr: socket.local_addr().unwrap(),
            zone,
            query_count,
        };
        let (zone, query_count) = (server.zone.clone(), server.query_count.clone());
        tokio::spawn(async move {
            let mut query = [0; 512];
            while let Ok((length, client)) = socket.recv_from(&mut query).await {
                query_count.fetch_add(1, Ordering::Relaxed);
                let response = encode_response(&query[..length], zone.lock().unwrap().as_deref());
                socket.send_to(&response, client).await.unwrap();
            }
        });
        server
    }

    fn set_zone(&self, zone: Zone) {
        *self.zone.lock().unwrap() = zone;
    }

    /// A resolver that uses this name server over UDP.
    fn resolver(&self) -> DnsResolver {
        let mut name_server = NameServerConfig::udp(self.addr.ip());
        for connection in &mut name_server.connections {
            connection.port = self.addr.port();
        }
        let config = ResolverConfig::from_parts(None, Vec::new(), vec![name_server]);
        let provider = TokioRuntimeProvider::default();
        let mut builder = TokioResolver::builder_with_config(config, provider);
        configure(builder.options_mut());
        DnsResolver(builder.build().unwrap())
    }

    async fn resolve(&self, query: &DnsQuery) -> Result<Vec<String>, DnsError> {
        let addresses = self.resolver().resolve(query).await?;
        Ok(addresses.iter().map(BackendAddress::to_string).collect())
    }
}

/// Encodes the response to a query: the records of the requested type.
fn encode_response(query: &[u8], zone: Option<&[RData]>) -> Vec<u8> {
    let mut response = Message::from_vec(query).unwrap().into_response();
    response.metadata.recursion_available = true;
    if zone.is_none() {
        response.metadata.response_code = ResponseCode::ServFail;
    }
    let question = &response.queries[0];
    let (name, kind) = (question.name().clone(), question.query_type());
    let records = zone
        .unwrap_or_default()
        .iter()
        .filter(|record| record.record_type() == kind);
    let answers = records.map(|record| Record::from_rdata(name.clone(), 0, record.clone()));
    response.add_answers(answers);
    response.to_vec().unwrap()
}

fn a_record(last: u8) -> RData {
    RData::from(Ipv4Addr::new(10, 0, 0, last))
}

fn srv_record(host: &str, port: u16) -> RData {
    RData::SRV(SRV::new(0, 0, port, Name::from_ascii(host).unwrap()))
}

fn host_query() -> DnsQuery {
    DnsQuery::Host {
        name: "vllm.example.".into(),
        port: 8000,
    }
}

#[tokio::test]
async fn each_address_is_one_backend() {
    let v6 = RData::from(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 7));
    let server = TestNameServer::start(Some(vec![
        a_record(9),
        a_record(2),
        a_record(9),
        v6.clone(),
    ]))
    .await;
    let expected = ["http://10.0.0.2:8000", "http://10.0.0.9:8000"];
    assert_eq!(
        server.resolve(&host_query()).await.unwrap(),
        expected,
        "sorted and without duplicates"
    );
    server.set_zone(Some(vec![v6]));
    assert_eq!(
        server.resolve(&host_query()).await.unwrap(),
        ["http://[fd00::7]:8000"]
    );
}

#[tokio::test]
async fn srv_records_give_hosts_and_ports() {
    let zone = vec![
        srv_record("b.vllm.example.", 8001),
        srv_record("a.vllm.example.", 8000),
    ];
    let server = TestNameServer::start(Some(zone)).await;
    let query = DnsQuery::Service {
        name: "_http._tcp.vllm.example.".into(),
    };
    let expected = ["http://a.vllm.example:8000", "http://b.vllm.example:8001"];
    assert_eq!(server.resolve(&query).await.unwrap(), expected);
}

#[tokio::test]
async fn failed_and_empty_queries_are_errors() {
    for zone in [None, Some(Vec::new())] {
        let server = TestNameServer::start(zone.clone()).await;
        assert!(server.resolve(&host_query()).await.is_err(), "{zone:?}");
    }
}

#[tokio::test]
async fn changes_and_second_failures_are_reported() {
    let server = TestNameServer::start(Some(vec![a_record(1), a_record(2)])).await;
    let resolver = server.resolver();
    let mut watcher = DnsWatcher::new(resolver, host_query(), Duration::from_millis(5));
    assert!(
        matches!(watcher.changed().await, DiscoveryChange::Backends(found) if found.len() == 2)
    );
    let query_count = || server.query_count.load(Ordering::Relaxed);
    for zone in [None, Some(Vec::new())] {
        server.set_zone(zone.clone());
        let problem = watcher.changed().await;
        let DiscoveryChange::Problem(Some(problem)) = problem else {
            panic!("{zone:?} {problem:?}")
        };
        assert!(problem.contains("vllm.example"), "{problem}");
        let mut changed = std::pin::pin!(watcher.changed());
        let target = query_count() + 4;
        while query_count() < target {
            let waited = tokio::time::timeout(Duration::from_millis(5), &mut changed).await;
            assert!(waited.is_err(), "{zone:?} is reported once");
        }
        server.set_zone(Some(vec![a_record(2), a_record(1)]));
        assert!(matches!(changed.await, DiscoveryChange::Problem(None)));
    }
    server.set_zone(Some(vec![a_record(3)]));
    let DiscoveryChange::Backends(found) = watcher.changed().await else {
        panic!("no backends")
    };
    assert_eq!(found[0].address.to_string(), "http://10.0.0.3:8000");
}
