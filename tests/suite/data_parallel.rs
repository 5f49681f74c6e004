//! The gateway routes requests to the data-parallel ranks of one backend.

use crate::support::scripted_backend::{self, Page, ScriptedBackend, Seen, Step};
use crate::support::test_gateway::{
    CHAT, Running, Setup, WHOLE, body_text, post, start_with, status, with_lines,
};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokenweir_ranks::RankFacet;
use tokenweir_routing::{Policy, PolicyKind};

/// The rank numbers on the metrics page. The header `x-data-parallel-rank` counts ranks from 0 instead.
const NUMBERS: [u32; 2] = [4, 5];
const REFUSAL: &str = r#"{"error":{"message":"data_parallel_rank 1 is out of range [0, 1).","type":"BadRequestError","code":400}}"#;
const NO_COMPLETIONS: &str =
    r#"{"error":{"message":"The model does not support Completions API"}}"#;

/// How a simulated engine treats the header `x-data-parallel-rank`.
#[derive(Clone, Copy, PartialEq)]
enum Engine {
    Follows,
    Ignores,
    RefusesProbes,
}

#[derive(Default)]
struct Ranks {
    requests: [AtomicUsize; 2],
    short_responses: [AtomicUsize; 2],
    all: AtomicUsize,
    refuses: AtomicBool,
}

impl Ranks {
    fn page(&self) -> String {
        let rank = |(number, short): (u32, &AtomicUsize)| {
            let short = short.load(Ordering::SeqCst);
            format!(
                "vllm:num_requests_running{{engine=\"{number}\"}} 0\n\
                 vllm:num_requests_waiting{{engine=\"{number}\"}} 0\n\
                 vllm:request_max_num_generation_tokens_bucket{{engine=\"{number}\",le=\"1.0\"}} {short}\n"
            )
        };
        NUMBERS
            .into_iter()
            .zip(&self.short_responses)
            .map(rank)
            .collect()
    }

    fn answer(&self, engine: Engine, seen: &Seen) -> Vec<Step> {
        let count = self.all.fetch_add(1, Ordering::SeqCst);
        let header = rank_of(seen).filter(|_| engine != Engine::Ignores);
        let is_probe = seen.head.starts_with("POST /v1/completions ");
        if is_probe && engine == Engine::RefusesProbes {
            return vec![Step::Send(scripted_backend::json(
                "400 Bad Request",
                NO_COMPLETIONS,
            ))];
        }
        if header.is_some() && self.refuses.load(Ordering::SeqCst) {
            return vec![Step::Send(scripted_backend::json(
                "400 Bad Request",
                REFUSAL,
            ))];
        }
        let rank = header.unwrap_or(count % 2);
        self.requests[rank].fetch_add(1, Ordering::SeqCst);
        self.short_responses[rank].fetch_add(usize::from(is_probe), Ordering::SeqCst);
        vec![Step::Send(scripted_backend::json("200 OK", WHOLE))]
    }
}

/// Returns the rank in the header `x-data-parallel-rank` of a request. `None`: the request has no such
/// header.
fn rank_of(seen: &Seen) -> Option<usize> {
    let line = seen
        .head
        .lines()
        .find_map(|line| line.strip_prefix("x-data-parallel-rank: "))?;
    Some(line.parse().unwrap())
}

async fn start(engine: Engine, policy: PolicyKind) -> (ScriptedBackend, Arc<Ranks>, Running) {
    let ranks = Arc::<Ranks>::default();
    let (on_request, on_scrape) = (ranks.clone(), ranks.clone());
    let backend = ScriptedBackend::start(move |seen| on_request.answer(engine, seen)).await;
    backend.set_metrics(Some(Page::Live(Box::new(move || on_scrape.page()))));
    let policy = Policy {
        kind: policy,
        ..Policy::default()
    };
    let setup = Setup {
        policy,
        data_parallel_ranks: true,
        ..Setup::default()
    };
    let gateway = start_with(&[backend.addr], setup).await;
    (backend, ranks, gateway)
}

async fn shown_ranks(gateway: &Running) -> Value {
    gateway.document("/status").await["backends"][0]["ranks"].clone()
}

fn chat(text: &str) -> String {
    json!({ "model": "tiny", "messages": [{ "role": "user", "content": text }] }).to_string()
}

#[tokio::test]
async fn each_rank_gets_requests_and_clients_choose_none() {
    let (backend, ranks, gateway) = start(Engine::Follows, PolicyKind::RoundRobin).await;
    let probes = backend.take_received();
    assert_eq!(
        probes.iter().filter_map(rank_of).collect::<Vec<_>>(),
        [0, 1, 1, 0]
    );
    let shown = shown_ranks(&gateway).await;
    let of = |index: usize| (&shown[index]["rank"], &shown[index]["header"]);
    assert_eq!(
        [of(0), of(1)],
        [(&json!(4), &json!("0")), (&json!(5), &json!("1"))]
    );
    for _ in 0..20 {
        let request = with_lines(&post(CHAT, &chat("hello")), "X-data-parallel-rank: 7");
        assert_eq!(status(&gateway.raw(request).await), 200);
        let record = gateway.record().await;
        let decision = record.decision.as_ref().unwrap();
        let rank = decision.selected().candidate.part;
        let sent = rank_of(backend.take_received().last().unwrap());
        assert_eq!(
            sent,
            NUMBERS.iter().position(|number| Some(*number) == rank)
        );
        assert_eq!(decision.candidate_count(), 2);
        let excluded = decision.excluded_backends().count();
        assert_eq!(
            excluded, 0,
            "a backend is not excluded if its ranks are candidates"
        );
    }
    let requests = ranks
        .requests
        .each_ref()
        .map(|count| count.load(Ordering::SeqCst));
    assert_eq!(requests, [12, 12], "10 requests and 2 probes at each");
    let metrics = gateway.admin("/metrics").await;
    assert!(metrics.contains("tokenweir_backend_ranks{"), "{metrics}");
    let page = RankFacet::status(&gateway.pool.backends()[0].facets.targets).0;
    assert_eq!(
        page.iter().map(|rank| rank.in_flight).collect::<Vec<_>>(),
        [0, 0],
        "released"
    );
}

#[tokio::test]
async fn a_repeated_prompt_returns_to_its_rank() {
    let (backend, _, gateway) = start(Engine::Follows, PolicyKind::PrefixAffinity).await;
    backend.take_received();
    let texts = ["All work and no play. ", "The quick brown fox. "].map(|text| text.repeat(400));
    for text in texts.iter().chain(&texts).chain(&texts) {
        assert_eq!(status(&gateway.post(CHAT, &chat(text)).await), 200);
    }
    let sent: Vec<_> = backend
        .seen()
        .iter()
        .map(|seen| rank_of(seen).unwrap())
        .collect();
    assert_eq!(sent.len(), 6);
    assert!(
        (0..2).all(|text| sent[text] == sent[text + 2] && sent[text] == sent[text + 4]),
        "{sent:?}"
    );
}

#[tokio::test]
async fn a_refused_rank_fails_no_request() {
    let (backend, ranks, gateway) = start(Engine::Follows, PolicyKind::RoundRobin).await;
    ranks.refuses.store(true, Ordering::SeqCst);
    backend.take_received();
    for _ in 0..3 {
        let answer = gateway.post(CHAT, &chat("hello")).await;
        assert_eq!(status(&answer), 200, "{}", body_text(&answer));
    }
    let sent: Vec<_> = backend.seen().iter().map(rank_of).collect();
    assert_eq!(sent, [Some(0), None, None, None]);
    let attempts = &gateway.record().await.attempts;
    assert_eq!(
        attempts.iter().map(|it| it.failure).collect::<Vec<_>>(),
        [Some("rank_refused"), None]
    );
    assert_eq!(shown_ranks(&gateway).await, json!([]));
    assert_eq!(gateway.pool.backends()[0].health.breaker.ejections(), 0);
}

#[tokio::test]
async fn an_ignored_header_leaves_servers_the_choice() {
    for engine in [Engine::Ignores, Engine::RefusesProbes] {
        let (backend, _, gateway) = start(engine, PolicyKind::RoundRobin).await;
        backend.take_received();
        assert_eq!(status(&gateway.post(CHAT, &chat("hello")).await), 200);
        let seen = backend.take_received();
        assert_eq!(seen.iter().map(rank_of).collect::<Vec<_>>(), [None]);
        assert_eq!(shown_ranks(&gateway).await, json!([]));
    }
}
