//! The live view: the document that the admin page and `tokenweir top` show, the files of the admin page, and
//! draining of backends.

use crate::support::scripted_backend::{FINISH, ROLE, ScriptedBackend, WORD, paused, stream_of};
use crate::support::test_gateway::{
    AS_JSON, CHAT, Running, body_json, gateway_answering, gateway_following, operate, post,
    read_rest, start, status, with_lines,
};
use tokenweir_api::{
    BackendSummary, ClientSummary, EndedRequest, GatewaySnapshot, GroupSummary, HistoryPage, Mark,
    StreamSummary, StreamsSummary,
};
use tokenweir_diagnose::{Evidence, Verdict};

const CHAT_BODY: &str =
    r#"{"model":"tiny","stream":true,"messages":[{"role":"user","content":"hello"}]}"#;

fn answer() -> Vec<u8> {
    stream_of(&[ROLE, WORD, WORD, FINISH, "[DONE]"])
}

async fn live(gateway: &Running) -> GatewaySnapshot {
    serde_json::from_value(gateway.document("/streams").await).unwrap()
}

/// Polls the document of the live view until a condition holds, and returns the document. The gateway updates
/// it shortly after clients see an event.
async fn live_when(
    gateway: &Running,
    condition: impl Fn(&GatewaySnapshot) -> bool,
) -> GatewaySnapshot {
    wait_for!(Some(live(gateway).await).filter(&condition))
}

fn find_backend<'a>(document: &'a GatewaySnapshot, name: &str) -> &'a BackendSummary {
    document
        .backends
        .iter()
        .find(|backend| backend.name == name)
        .unwrap()
}

#[tokio::test]
async fn the_age_of_the_metrics_page_is_shown() {
    let (_fake, gateway) = gateway_answering(answer()).await;
    assert_eq!(live(&gateway).await.metrics_read_seconds_ago, None);
    gateway.admin("/metrics").await;
    assert!(live(&gateway).await.metrics_read_seconds_ago.is_some());
}

#[tokio::test]
async fn latencies_and_models_of_requests_are_shown() {
    let (_fake, gateway) = gateway_answering(answer()).await;
    gateway.post(CHAT, CHAT_BODY).await;
    let live = live_when(&gateway, |live| live.totals.requests == 1).await;
    let shown: Vec<_> = live
        .models
        .iter()
        .map(|model| (&*model.name, model.requests))
        .collect();
    assert_eq!(shown, [("tiny", 1)]);
    assert!(live.models[0].ttft_seconds.is_some() && live.tenants.is_empty());
    let history = gateway.document("/history").await;
    let HistoryPage { heat_map, marks } = serde_json::from_value(history).unwrap();
    let ttfts: u32 = heat_map.ttft.iter().flatten().sum();
    assert_eq!((ttfts, heat_map.ttft.len(), marks.len()), (1, 1, 0));
    assert_eq!(heat_map.ttft[0].len(), heat_map.bounds.len() + 1);
}

#[tokio::test]
async fn an_open_stream_becomes_a_request() {
    let steps = paused(&[ROLE, WORD, WORD, WORD], &[FINISH, "[DONE]"]);
    let (fake, gateway) = gateway_following(steps).await;
    let request = with_lines(&post(CHAT, CHAT_BODY), "x-request-id: live-1");
    let client = gateway.send(request).await;
    let shown = live_when(&gateway, |live| {
        live.streams
            .oldest
            .first()
            .is_some_and(|stream| stream.tokens == 3)
    });
    let shown = shown.await;
    let stream = &shown.streams.oldest[0];
    assert_eq!(
        (stream.request_id.as_str(), stream.model.as_str()),
        ("live-1", "tiny")
    );
    assert_eq!(stream.backend, Some(fake.addr.to_string()));
    assert_eq!(
        (stream.client.as_str(), stream.prompt_tokens > 0),
        ("127.0.0.1", true)
    );
    let main = &shown.clients[0];
    assert_eq!(
        (main.address.as_deref(), main.open_streams),
        (Some("127.0.0.1"), 1)
    );
    assert_eq!(
        (stream.phase.as_str(), shown.streams.phases["decode"]),
        ("decode", 1)
    );
    assert!(stream.last_output_age_seconds.unwrap() <= stream.age_seconds);
    assert_eq!((shown.streams.count, shown.requests_in_flight), (1, 1));
    assert_eq!((shown.totals.requests, shown.totals.output_tokens), (0, 3));
    assert_eq!(
        find_backend(&shown, &fake.addr.to_string()).share,
        Some(1.0)
    );
    fake.go();
    read_rest(client).await;
    let ended = live_when(&gateway, |live| live.totals.requests == 1).await;
    let request = &ended.ended[0];
    assert_eq!(
        (request.request_id.as_str(), request.outcome.as_str()),
        ("live-1", "ok")
    );
    assert_eq!(request.client, "127.0.0.1");
    assert!(request.ttft_seconds.unwrap() <= request.duration_seconds);
    assert_eq!(
        (
            ended.last_minute.requests,
            ended.last_minute.ttft.unwrap().count
        ),
        (1, 1)
    );
    assert_eq!(ended.streams.count, 0);
    assert_eq!(ended.history.requests.iter().sum::<u64>(), 1);
    assert_eq!(ended.backends_by_condition, "1 ok");
}

#[tokio::test]
async fn a_drained_backend_gets_no_new_requests() {
    let fakes = [
        ScriptedBackend::answering(answer()).await,
        ScriptedBackend::answering(answer()).await,
    ];
    let gateway = start(&[fakes[0].addr, fakes[1].addr]).await;
    let name = fakes[0].addr.to_string();
    let drained = gateway.change(&format!("/-/drain?backend={name}")).await;
    assert_eq!(status(&drained), 200);
    let response = body_json(&drained);
    assert_eq!(
        (&response["drained"], &response["changed"]),
        (&true.into(), &true.into())
    );
    let shown = live(&gateway).await;
    assert!(find_backend(&shown, &name).drained && shown.ready);
    for _ in 0..20 {
        assert_eq!(status(&gateway.post(CHAT, CHAT_BODY).await), 200);
    }
    assert_eq!(
        (
            fakes[0].take_received().len(),
            fakes[1].take_received().len()
        ),
        (0, 20)
    );
    let again = gateway.change(&format!("/-/undrain?backend={name}")).await;
    assert_eq!(status(&again), 200);
    let other = fakes[1].addr;
    gateway.change(&format!("/-/drain?backend={other}")).await;
    assert_eq!(status(&gateway.post(CHAT, CHAT_BODY).await), 200);
    assert_eq!(fakes[0].seen().len(), 1);
}

#[tokio::test]
async fn no_foreign_page_can_drain_a_backend() {
    let (fake, gateway) = gateway_answering(answer()).await;
    let path = format!("/-/drain?backend={}", fake.addr);
    let with = |parameters: &str| format!("{path}{parameters}");
    let long = "x".repeat(201);
    let foreign = format!("{AS_JSON}origin: https://evil.example\r\n");
    let own = format!("{AS_JSON}origin: http://{}\r\n", gateway.admin);
    let form = "content-type: application/x-www-form-urlencoded\r\n";
    for (method, path, headers, expected, words) in [
        ("POST", path.as_str(), foreign.as_str(), 403, ""),
        ("POST", "/-/reload", "origin: null\r\n", 403, ""),
        ("POST", &path, form, 415, ""),
        ("POST", &path, "", 415, ""),
        ("GET", &path, AS_JSON, 405, ""),
        (
            "OPTIONS",
            &path,
            "origin: https://evil.example\r\n",
            405,
            "",
        ),
        ("POST", "/-/drain", AS_JSON, 400, "missing field `backend`"),
        ("POST", "/-/drain?backend=nobody", AS_JSON, 404, ""),
        (
            "POST",
            &with("&untill=5m"),
            AS_JSON,
            400,
            "unknown field `untill`",
        ),
        ("POST", &with("&for=10"), AS_JSON, 400, "such as 250ms"),
        ("POST", &with("&for=0s"), AS_JSON, 400, "longer than zero"),
        (
            "POST",
            &with("&reason=a%0Ab"),
            AS_JSON,
            400,
            "control character",
        ),
        (
            "POST",
            &with(&format!("&reason={long}")),
            AS_JSON,
            400,
            "more than 200 characters",
        ),
        (
            "POST",
            &with("&for=5m").replace("drain", "undrain"),
            AS_JSON,
            400,
            "of /-/drain only",
        ),
    ] {
        let answer = operate(gateway.admin, method, path, headers).await;
        let text = String::from_utf8_lossy(&answer).to_lowercase();
        assert_eq!(
            status(&answer),
            expected,
            "{method} {path} {headers}: {text}"
        );
        assert!(text.contains(words), "{path}: {text}");
        assert!(!text.contains("access-control-allow"), "{text}");
        assert!(!live(&gateway).await.backends[0].drained);
    }
    assert_eq!(
        status(&operate(gateway.admin, "POST", &path, &own).await),
        200
    );
}

#[tokio::test]
async fn browsers_get_a_page_and_programs_get_paths() {
    let (_fake, gateway) = gateway_answering(answer()).await;
    let list = gateway.admin("/").await;
    assert!(
        list.starts_with("HTTP/1.1 200") && list.contains("/metrics"),
        "{list}"
    );
    assert!(!list.contains("<html"));
    let page = gateway
        .get_admin_page_as("/", "text/html,application/xhtml+xml,*/*;q=0.8")
        .await;
    assert!(page.contains("content-security-policy: default-src 'none'; script-src 'self'"));
    assert!(page.contains("<noscript>") && page.contains("<html lang=\"en\">"));
    assert!(!page.contains("style=") && !page.contains("<style") && !page.contains("onclick"));
    let links = ["src=\"", "href=\""]
        .into_iter()
        .flat_map(|name| page.split(name).skip(1));
    for link in links.map(|rest| rest.split('"').next().unwrap()) {
        assert!(
            link.starts_with(['/', '#']) || link.starts_with("data:"),
            "{link}"
        );
        if link.starts_with("/page/") {
            let file = gateway.admin(link).await;
            assert!(file.starts_with("HTTP/1.1 200"), "{link}: {file}");
        }
    }
    assert!(
        gateway
            .admin("/page/nothing.js")
            .await
            .starts_with("HTTP/1.1 404")
    );
    assert!(gateway.admin("/nothing").await.starts_with("HTTP/1.1 404"));
}

/// Returns the names that follow `value` and a dot in a script, such as `name` in `backend.name`: the fields
/// that the script reads.
fn read_of<'a>(script: &'a str, value: &str) -> Vec<&'a str> {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let value = format!("{value}.");
    let places = script.match_indices(&value).filter(|(at, _)| {
        !script[..*at].ends_with(|letter: char| is_word(letter) || matches!(letter, '.' | '/'))
    });
    let rests = places.map(|(at, _)| &script[at + value.len()..]);
    let names = rests.map(|rest| rest.split(|letter: char| !is_word(letter)).next().unwrap());
    // If `value` is the last word of a sentence in a comment, no name follows its full stop.
    names.filter(|name| !name.is_empty()).collect()
}

#[tokio::test]
async fn every_field_of_the_page_exists() {
    let (_fake, gateway) = gateway_answering(answer()).await;
    let verdict = Verdict {
        evidence: vec![Evidence::default()],
        ..Verdict::default()
    };
    let document = GatewaySnapshot {
        backends: vec![BackendSummary::default()],
        streams: StreamsSummary {
            oldest: vec![StreamSummary::default()],
            ..StreamsSummary::default()
        },
        ended: vec![EndedRequest::default()],
        verdicts: vec![verdict],
        clients: vec![ClientSummary::default()],
        models: vec![GroupSummary::default()],
        ..GatewaySnapshot::default()
    };
    let mut document = serde_json::to_value(document).unwrap();
    document["mark"] = serde_json::to_value(Mark::default()).unwrap();
    for (file, value, place, least) in [
        ("page.js", "live", "", 10),
        ("page.js", "minute", "/last_minute", 3),
        ("columns.js", "backend", "/backends/0", 10),
        ("columns.js", "stream", "/streams/oldest/0", 5),
        ("columns.js", "request", "/ended/0", 8),
        ("columns.js", "client", "/clients/0", 8),
        ("columns.js", "group", "/models/0", 6),
        ("backend.js", "backend", "/backends/0", 10),
        ("backend.js", "stream", "/streams/oldest/0", 4),
        ("backend.js", "request", "/ended/0", 4),
        ("request.js", "stream", "/streams/oldest/0", 5),
        ("history.js", "mark", "/mark", 8),
        ("verdicts.js", "verdict", "/verdicts/0", 8),
        ("verdicts.js", "evidence", "/verdicts/0/evidence/0", 5),
    ] {
        let script = gateway.admin(&format!("/page/{file}")).await;
        let read = read_of(&script, value);
        assert!(read.len() >= least, "{file} reads {read:?} of {value}");
        let there = document.pointer(place).unwrap();
        let missing: Vec<_> = read
            .iter()
            .filter(|name| there.get(name).is_none())
            .collect();
        assert!(
            missing.is_empty(),
            "{file} reads {missing:?} of {value}: {there:#}"
        );
    }
}
