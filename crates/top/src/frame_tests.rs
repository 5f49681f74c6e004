//! Frames of several widths, as characters.

use super::*;
use crate::{Key, Wish};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use tokenweir_api::{EndedRequest, Replica, Stream, Streams, Waiting};
use tokenweir_api::{LastMinute, Totals};

const QUANTILES: Option<Quantiles> =
    Some(Quantiles { count: 9, p50: 0.031, p95: 0.12, p99: 0.4, max: 0.5 });

fn replica(name: &str, kv_usage: f64) -> Replica {
    Replica {
        name: name.into(),
        health: "up".into(),
        state: "available".into(),
        up: true,
        breaker: "closed".into(),
        weight: 1,
        kv_usage: Some(kv_usage),
        waiting: Some(2.0),
        running: Some(7.0),
        share: Some(0.5),
        sample_age_seconds: Some(0.2),
        ..Replica::default()
    }
}

fn document() -> Document {
    let stream = |id: &str, age_seconds| Stream {
        request_id: id.into(),
        model: "tiny".into(),
        replica: Some("gpu-0".into()),
        phase: "decode".into(),
        age_seconds,
        tokens: 41,
        silence_seconds: Some(0.02),
        ..Stream::default()
    };
    let ended = EndedRequest {
        request_id: "req-ended".into(),
        model: "tiny".into(),
        outcome: "ok".into(),
        slow: Some("engine_queue".into()),
        ttft_seconds: Some(2.5),
        duration_seconds: 9.0,
        ..EndedRequest::default()
    };
    Document {
        version: "0.1.0".into(),
        policy: "kv_aware".into(),
        ready: true,
        uptime_seconds: 61.0,
        requests_in_flight: 5,
        queue: vec![Waiting { class: "default".into(), waiting: 3 }],
        replicas: vec![replica("gpu-1", 0.97), replica("gpu-0", 0.12)],
        streams: Streams {
            count: 2,
            oldest: vec![stream("req-young", 1.0), stream("req-old", 30.0)],
            ..Streams::default()
        },
        totals: Totals { requests: 10, output_tokens: 100 },
        last_minute: LastMinute {
            seconds: 60.0,
            requests: 120,
            failed: 6,
            output_tokens: 600,
            ttft: QUANTILES,
            itl: QUANTILES,
            e2e: QUANTILES,
            ..LastMinute::default()
        },
        ended: vec![ended],
        verdicts: vec![Verdict {
            verdict: "kv_thrashing".into(),
            backend: "gpu-1".into(),
            severity: Severity::Critical,
            meaning: "The KV cache is too small.".into(),
            remedy: "Add a replica.".into(),
            ..Verdict::default()
        }],
        ..Document::default()
    }
}

fn watching() -> State {
    let mut state = State::new();
    state.on_document(document());
    state
}

/// The frame as lines, without the spaces at their ends.
fn drawn(state: &State, width: u16, height: u16) -> Vec<String> {
    drawn_as(state, width, height, Look { has_colour: true, has_keys: true })
}

fn drawn_as(state: &State, width: u16, height: u16, look: Look) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| frame.render_widget(Frame { state, look }, frame.area())).unwrap();
    let text = terminal.backend().to_string();
    text.lines().map(|line| line.trim_matches('"').trim_end().to_owned()).collect()
}

fn has(lines: &[String], words: &str) -> bool {
    lines.iter().any(|line| line.contains(words))
}

#[test]
fn every_width_shows_the_replicas_the_streams_and_what_is_wrong() {
    for width in [40, 80, 200] {
        let lines = drawn(&watching(), width, 40);
        for words in ["ready", "gpu-0", "97%", "req-old", "req-ended", "kv_thrashing"] {
            assert!(has(&lines, words), "{words} at {width} columns:\n{}", lines.join("\n"));
        }
        assert!(lines[0].ends_with("up 1m01s"), "{}", lines[0]);
        assert!(has(&lines, "2 req/s") && has(&lines, "TTFT 31ms / 120ms / 400ms"));
        assert!(lines.iter().all(|line| line.chars().count() <= width.into()));
    }
}

#[test]
fn a_verdict_says_how_bad_it_is_whose_it_is_and_what_to_do() {
    let lines = drawn(&watching(), 200, 40);
    let said = "critical  gpu-1: The KV cache is too small.  [kv_thrashing]  -> Add a replica.";
    assert!(has(&lines, said), "{}", lines.join("\n"));
}

#[test]
fn a_gateway_that_is_not_ready_says_why() {
    let shown = |unready: Option<&str>| {
        let mut state = State::new();
        let unready = unready.map(Into::into);
        state.on_document(Document { ready: false, unready, ..document() });
        drawn(&state, 80, 40)
    };
    let why = "3 backends: 1 asleep, 2 down";
    assert!(has(&shown(Some(why)), &format!("not ready: {why}")));
    assert!(has(&shown(None), "not ready"), "an older gateway does not say why");
}

#[test]
fn panic_mode_is_shown_and_so_is_the_state_of_each_replica() {
    let mut state = State::new();
    let replica = |name: &str, state: &str, up| Replica {
        state: state.into(),
        up,
        breaker: if state == "ejected" { "open" } else { "closed" }.into(),
        ..replica(name, 0.1)
    };
    let replicas = vec![
        replica("gpu-0", "ejected", true),
        replica("gpu-1", "ejected", false),
        replica("gpu-2", "asleep", false),
        Replica { weight: 0, ..replica("gpu-3", "zero_weight", false) },
        Replica { in_flight: 0, drained: true, ..replica("gpu-4", "drained", false) },
    ];
    state.on_document(Document { replicas, panic: true, ..document() });
    let shown = drawn(&state, 80, 40);
    assert!(has(&shown, "ready, panic mode"));
    let rows = [
        ("gpu-0", "panic"),
        ("gpu-1", "ejected"),
        ("gpu-2", "asleep"),
        ("gpu-3", "weight 0"),
        ("gpu-4", "drained"),
    ];
    for (name, word) in rows {
        let is_row = |line: &&String| line.contains(name) && line.contains(word);
        assert!(shown.iter().find(is_row).is_some(), "{name} is {word}");
    }
}

#[test]
fn a_wide_screen_has_more_columns_than_a_narrow_one() {
    let wide = drawn(&watching(), 200, 40);
    assert!(has(&wide, "SAMPLE") && has(&wide, "TENANT") && has(&wide, "engine_queue"));
    let narrow = drawn(&watching(), 40, 40);
    assert!(has(&narrow, "KV") && !has(&narrow, "SAMPLE") && !has(&narrow, "TENANT"));
}

#[test]
fn a_low_screen_shows_the_list_that_is_looked_at() {
    let mut state = watching();
    let lines = drawn(&state, 80, 15);
    assert!(has(&lines, "gpu-0") && !has(&lines, "req-old"), "{}", lines.join("\n"));
    state.on_key(Key::Tab);
    let lines = drawn(&state, 80, 15);
    assert!(has(&lines, "req-old") && !has(&lines, "97%"), "{}", lines.join("\n"));
}

#[test]
fn a_screen_that_is_too_small_says_so_and_no_size_is_a_panic() {
    assert!(has(&drawn(&watching(), 20, 10), "too small"));
    for width in 1..60 {
        for height in 1..30 {
            assert!(!drawn(&watching(), width, height).is_empty());
        }
    }
}

#[test]
fn without_colour_nothing_is_coloured() {
    let state = watching();
    let area = Rect::new(0, 0, 80, 40);
    for has_colour in [true, false] {
        let mut buffer = Buffer::empty(area);
        let look = Look { has_colour, has_keys: true };
        Frame { state: &state, look }.render(area, &mut buffer);
        let is_coloured = buffer.content().iter().any(|cell| cell.fg != Color::Reset);
        assert_eq!(is_coloured, has_colour);
    }
}

#[test]
fn before_the_first_answer_and_without_one_the_screen_says_why_it_is_empty() {
    let mut state = State::new();
    assert!(has(&drawn(&state, 80, 24), "asking the gateway"));
    state.on_problem("the gateway does not answer: connection refused");
    assert!(has(&drawn(&state, 80, 24), "no news: the gateway does not answer"));
    state.on_document(document());
    assert!(!has(&drawn(&state, 80, 24), "no news"));
    state.on_problem("gone");
    let lines = drawn(&state, 80, 40);
    assert!(has(&lines, "no news: gone") && has(&lines, "gpu-0"), "{}", lines.join("\n"));
}

#[test]
fn text_for_a_pipe_is_whole_and_has_no_keys_in_it() {
    let state = watching();
    let look = Look { has_colour: false, has_keys: false };
    let height = Frame { state: &state, look }.height(80);
    let lines = drawn_as(&state, 80, height, look);
    assert!(has(&lines, "req-old") && has(&lines, "req-young") && has(&lines, "req-ended"));
    assert!(!has(&lines, "q quit"));
}

#[test]
fn lists_are_sorted_and_filtered_as_keys_say() {
    let mut state = watching();
    let order = |state: &State, first: &str, second: &str| {
        let lines = drawn(state, 80, 40);
        let place = |words: &str| lines.iter().position(|line| line.starts_with(words));
        place(first) < place(second)
    };
    assert!(order(&state, "gpu-0", "gpu-1") && order(&state, "req-old", "req-young"));
    state.on_key(Key::Char('r'));
    assert!(order(&state, "gpu-1", "gpu-0"));
    for letter in "/GPU-0".chars() {
        state.on_key(Key::Char(letter));
    }
    state.on_key(Key::Enter);
    let lines = drawn(&state, 80, 40);
    assert!(!has(&lines, "97%") && has(&lines, "12%") && has(&lines, "filter: GPU-0"));
    assert!(has(&lines, "nothing fits the filter"));
    state.on_key(Key::Escape);
    assert!(has(&drawn(&state, 80, 40), "97%"));
}

#[test]
fn a_replica_is_drained_only_when_that_is_confirmed() {
    let mut state = watching();
    assert_eq!(state.on_key(Key::Char('d')), None);
    assert!(has(&drawn(&state, 80, 24), "drain gpu-0? y / n"));
    assert_eq!(state.on_key(Key::Char('n')), None);
    state.on_key(Key::Move(1));
    state.on_key(Key::Char('d'));
    let wish = Wish::Drain { replica: "gpu-1".into(), is_drained: true };
    assert_eq!(state.on_key(Key::Char('y')), Some(wish));
    state.on_key(Key::Char('2'));
    assert_eq!(state.on_key(Key::Char('d')), None);
    assert!(has(&drawn(&state, 80, 24), "choose a replica"));
}

#[test]
fn a_request_that_is_selected_can_be_explained_and_read() {
    let mut state = watching();
    assert_eq!(state.on_key(Key::Enter), None);
    state.on_key(Key::Char('3'));
    let wish = Wish::Explain { request_id: "req-ended".into() };
    assert_eq!(state.on_key(Key::Enter), Some(wish));
    state.on_text("why", (0..100).map(|line| format!("line {line}")).collect());
    assert!(has(&drawn(&state, 80, 24), "line 0"));
    state.on_key(Key::Move(10));
    let lines = drawn(&state, 80, 24);
    assert!(!has(&lines, "line 9") && has(&lines, "line 10"));
    state.on_key(Key::Escape);
    assert!(!has(&drawn(&state, 80, 24), "line 10"));
}

#[test]
fn the_selection_stays_on_a_row_when_rows_go_away() {
    let mut state = watching();
    state.on_key(Key::End);
    state.on_document(Document { replicas: vec![replica("gpu-9", 0.1)], ..document() });
    state.on_key(Key::Char('d'));
    assert!(has(&drawn(&state, 80, 24), "drain gpu-9?"));
}

#[test]
fn paused_it_shows_what_was() {
    let mut state = watching();
    state.on_key(Key::Char('p'));
    state.on_document(Document { replicas: Vec::new(), ..document() });
    let lines = drawn(&state, 80, 40);
    assert!(has(&lines, "paused") && has(&lines, "gpu-0"));
}
