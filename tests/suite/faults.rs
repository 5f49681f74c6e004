//! Replicas that die at every phase of a request, one after the other under load. Until the first
//! output no client sees it while another replica lives; after it every client sees a cut; every
//! request is recorded once, and nothing is left behind.

use crate::support::fake::{FINISH, Fake, ROLE, Step, WORD, chunk, stream_head};
use crate::support::gateway::{Running, Setup, body, start_with, status};
use crate::support::mortal::{Death, Mortal};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokenweir::backend::Health;
use tokenweir::proxy::retry;
use tokenweir_core::record::Outcome;

const CHAT: &str = "/v1/chat/completions";
/// Deaths in `cargo test`; the variable FAULTS asks for another number.
const DEATHS: usize = 60;
/// Requests that are open at each of them.
const AT_ONCE: usize = 8;
/// Bytes of a prompt: its upload takes several reads.
const PROMPT: usize = 100 << 10;

/// The whole answer, in pieces between which others have their turn.
fn pieces() -> Vec<Vec<u8>> {
    let events = [ROLE, WORD, WORD, WORD, FINISH, "[DONE]"];
    let events = events.iter().map(|event| chunk(event));
    [stream_head()].into_iter().chain(events).chain([b"0\r\n\r\n".to_vec()]).collect()
}

/// The bytes after which a replica dies, for each phase of a request.
fn deaths() -> Vec<(&'static str, Option<Death>)> {
    let lengths: Vec<usize> = pieces().iter().map(Vec::len).collect();
    let after = |count: usize| lengths[..count].iter().sum::<usize>();
    vec![
        ("connect", None),
        ("request head", Some(Death::Asked(40))),
        ("upload", Some(Death::Asked(PROMPT / 2))),
        ("response head", Some(Death::Answered(1))),
        ("half of the head", Some(Death::Answered(30))),
        ("prefill", Some(Death::Answered(after(1)))),
        ("first event", Some(Death::Answered(after(2)))),
        ("inside the first output", Some(Death::Answered(after(2) + 60))),
        ("first output", Some(Death::Answered(after(3)))),
        ("mid-stream", Some(Death::Answered(after(4) + 5))),
        ("after the finish", Some(Death::Answered(after(6)))),
        ("last byte", Some(Death::Answered(after(8) - 1))),
    ]
}

/// A replica that answers in pieces.
async fn replica(seed: u64) -> Fake {
    let asked = AtomicUsize::new(0);
    Fake::start(move |_| {
        let number = asked.fetch_add(1, Ordering::SeqCst) as u64;
        let mut random = fastrand::Rng::with_seed(seed ^ number);
        let turns = |random: &mut fastrand::Rng| Step::Turns(random.usize(..40));
        pieces().into_iter().flat_map(|piece| [turns(&mut random), Step::Send(piece)]).collect()
    })
    .await
}

async fn until_up(gateway: &Running) {
    let is_up = || {
        let backends = gateway.pool.backends();
        backends.iter().all(|backend| backend.state().health == Health::Up)
    };
    while !is_up() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_killed_at_any_phase_costs_no_client_more_than_what_had_begun() {
    let deaths_wanted = std::env::var("FAULTS").map_or(DEATHS, |count| count.parse().unwrap());
    let fakes = [replica(1).await, replica(2).await, replica(3).await];
    let mut mortals = Vec::new();
    for fake in &fakes {
        mortals.push(Mortal::before(fake.addr).await);
    }
    let addresses: Vec<_> = mortals.iter().map(|mortal| mortal.addr).collect();
    // Nobody kills replicas several times a second: the budget is not what is tried here.
    let retry = retry::Settings { budget: 1.0, budget_floor: 1_000, ..Default::default() };
    let gateway = start_with(&addresses, Setup { retry, ..Setup::default() }).await;
    let whole: Vec<u8> = pieces().concat();
    let whole = body(&whole).0;
    let mut random = fastrand::Rng::with_seed(6);
    let mut seen: HashMap<&str, [usize; 2]> = HashMap::new();
    for number in 0..deaths_wanted {
        let (phase, death) = deaths()[number % deaths().len()];
        let victim = random.usize(..mortals.len());
        match death {
            Some(death) => mortals[victim].doom(death),
            None => drop(mortals[victim].kill().await),
        }
        let asks = (0..AT_ONCE).map(|one| {
            let prompt = format!("{number} {one} {}", "x".repeat(PROMPT));
            let ask = serde_json::json!({
                "model": "tiny", "stream": true,
                "messages": [{ "role": "user", "content": prompt }],
            });
            let gateway = &gateway;
            async move { gateway.post(CHAT, &ask.to_string()).await }
        });
        let answers = futures_util::future::join_all(asks).await;
        for answer in answers {
            assert_eq!(status(&answer), 200, "{phase}: {}", String::from_utf8_lossy(&answer));
            let (bytes, is_whole) = body(&answer);
            assert!(whole.starts_with(&bytes), "{phase}: bytes that no replica sent");
            let has_output = String::from_utf8_lossy(&bytes).contains(WORD);
            assert!(has_output, "{phase}: a cut before the first output reached a client");
            assert!(!is_whole || bytes == whole, "{phase}: a clean end of a stream that was cut");
            seen.entry(phase).or_default()[usize::from(is_whole)] += 1;
        }
        mortals[victim].kill().await;
        mortals[victim].revive().await;
        until_up(&gateway).await;
    }
    let mut outcomes = [0, 0];
    for _ in 0..deaths_wanted * AT_ONCE {
        let record = gateway.record().await;
        assert!(matches!(record.outcome, Outcome::Ok | Outcome::Truncated), "{record:?}");
        outcomes[usize::from(record.outcome == Outcome::Ok)] += 1;
    }
    gateway.assert_no_more_records().await;
    let cut: usize = seen.values().map(|[cut, _]| cut).sum();
    println!("{outcomes:?} cut and whole, by phase {seen:?}");
    assert!(cut > 0 && outcomes[1] > cut, "{outcomes:?}");
    assert!(gateway.pool.backends().iter().all(|backend| backend.in_flight() == 0));
    assert!(gateway.admin("/status").await.contains(r#""in_flight":0"#));
}
