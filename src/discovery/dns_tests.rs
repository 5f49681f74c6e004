//! Names, asked of a name server on loopback that answers in bytes written by hand (RFC 1035).

use super::*;
use crate::discovery::Source;
use crate::discovery::name::WatchedName;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::net::UdpSocket;

const A: u16 = 1;
const AAAA: u16 = 28;
const SRV: u16 = 33;

/// What there is: type and data of each record. `None`: the server fails.
type Zone = Option<Vec<(u16, Vec<u8>)>>;

struct Server {
    addr: SocketAddr,
    zone: Arc<Mutex<Zone>>,
    questions: Arc<AtomicUsize>,
}

impl Server {
    async fn start(zone: Zone) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (zone, questions) = (Arc::new(Mutex::new(zone)), Arc::new(AtomicUsize::new(0)));
        let server = Self { addr: socket.local_addr().unwrap(), zone, questions };
        let (zone, questions) = (server.zone.clone(), server.questions.clone());
        tokio::spawn(async move {
            let mut query = [0; 512];
            while let Ok((length, peer)) = socket.recv_from(&mut query).await {
                questions.fetch_add(1, Ordering::Relaxed);
                let answer = answer(&query[..length], zone.lock().unwrap().as_deref());
                socket.send_to(&answer, peer).await.unwrap();
            }
        });
        server
    }

    fn set(&self, zone: Zone) {
        *self.zone.lock().unwrap() = zone;
    }

    async fn ask(&self, question: &Question) -> Result<Vec<String>, DnsError> {
        let found = Dns::at(self.addr).unwrap().ask(question).await?;
        Ok(found.iter().map(Address::to_string).collect())
    }
}

/// The answer to a query: its id and question again, and the records of the type that it asks for.
fn answer(query: &[u8], zone: Option<&[(u16, Vec<u8>)]>) -> Vec<u8> {
    let name = query[12..].iter().position(|byte| *byte == 0).unwrap() + 1;
    let question = &query[12..12 + name + 4];
    let kind = u16::from_be_bytes([question[name], question[name + 1]]);
    let records: Vec<_> = zone.unwrap_or_default().iter().filter(|it| it.0 == kind).collect();
    let failure = if zone.is_none() { 2 } else { 0 };
    let mut answer = query[..2].to_vec();
    answer.extend([0x81, 0x80 | failure, 0, 1, 0, records.len() as u8, 0, 0, 0, 0]);
    answer.extend(question);
    for (kind, data) in records {
        // The name of the question again, class IN, no time to live.
        answer.extend([0xc0, 0x0c]);
        answer.extend(kind.to_be_bytes());
        answer.extend([0, 1, 0, 0, 0, 0]);
        answer.extend((data.len() as u16).to_be_bytes());
        answer.extend(data);
    }
    answer
}

fn v4(last: u8) -> (u16, Vec<u8>) {
    (A, vec![10, 0, 0, last])
}

fn service(host: &str, port: u16) -> (u16, Vec<u8>) {
    let mut data = vec![0, 0, 0, 0];
    data.extend(port.to_be_bytes());
    for label in host.split('.') {
        data.push(label.len() as u8);
        data.extend(label.as_bytes());
    }
    data.push(0);
    (SRV, data)
}

fn host() -> Question {
    Question::Host { name: "vllm.example.".into(), port: 8000 }
}

#[tokio::test]
async fn each_address_of_a_name_is_a_replica_once() {
    let v6 = (AAAA, vec![0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
    let server = Server::start(Some(vec![v4(9), v4(2), v4(9), v6.clone()])).await;
    let expected = ["http://10.0.0.2:8000", "http://10.0.0.9:8000"];
    assert_eq!(server.ask(&host()).await.unwrap(), expected, "in an order that does not change");
    server.set(Some(vec![v6]));
    assert_eq!(server.ask(&host()).await.unwrap(), ["http://[fd00::7]:8000"]);
}

#[tokio::test]
async fn a_service_has_hosts_and_ports() {
    let zone = vec![service("b.vllm.example", 8001), service("a.vllm.example", 8000)];
    let server = Server::start(Some(zone)).await;
    let question = Question::Service { name: "_http._tcp.vllm.example.".into() };
    let expected = ["http://a.vllm.example:8000", "http://b.vllm.example:8001"];
    assert_eq!(server.ask(&question).await.unwrap(), expected);
}

#[tokio::test]
async fn a_failure_and_an_empty_answer_are_no_list() {
    for zone in [None, Some(Vec::new())] {
        let server = Server::start(zone.clone()).await;
        assert!(server.ask(&host()).await.is_err(), "{zone:?}");
    }
}

#[tokio::test]
async fn only_another_list_is_news_and_failures_are_waited_out() {
    let server = Server::start(Some(vec![v4(1), v4(2)])).await;
    let dns = Dns::at(server.addr).unwrap();
    let mut name = WatchedName::new(dns, host(), Duration::from_millis(5));
    assert_eq!(name.changed().await.len(), 2);
    let asked = || server.questions.load(Ordering::Relaxed);
    let mut changed = std::pin::pin!(name.changed());
    for zone in [Some(vec![v4(2), v4(1)]), None, Some(Vec::new())] {
        server.set(zone.clone());
        let goal = asked() + 4;
        while asked() < goal {
            let waited = tokio::time::timeout(Duration::from_millis(5), &mut changed).await;
            assert!(waited.is_err(), "{zone:?} is no news");
        }
    }
    server.set(Some(vec![v4(3)]));
    let found = changed.await;
    assert_eq!(found[0].to_string(), "http://10.0.0.3:8000");
}
