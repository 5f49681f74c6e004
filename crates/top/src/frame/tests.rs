//! Tests of frames of several sizes, as text.

mod harm;
mod verdicts;

use super::*;
use crate::UserAction;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode;
use ratatui::style::Color;
use tokenweir_api::{
    BackendCondition, BackendFacts, BackendSummary, EndedRequest, GatewaySnapshot, GatewayState,
    Harm, LastMinute, LateStreams, LatencyQuantiles, QueueSummary, RequestTotals, StreamSummary,
    StreamsSummary,
};
use tokenweir_diagnose::{Verdict, VerdictSeverity};

const QUANTILES: Option<LatencyQuantiles> = Some(LatencyQuantiles {
    count: 9,
    p50: 0.031,
    p95: 0.12,
    p99: 0.4,
    max: 0.5,
});

fn backend(name: &str, kv_usage: f64) -> BackendSummary {
    BackendSummary {
        name: name.into(),
        facts: BackendFacts {
            health: "up".into(),
            state: "available".into(),
            up: true,
            breaker: "closed".into(),
            weight: 1,
            kv_usage: Some(kv_usage),
            waiting: Some(2.0),
            running: Some(7.0),
            scrape_age_seconds: Some(0.2),
            ..BackendFacts::default()
        },
        ttft_seconds: Some(0.033),
        share: Some(0.5),
        ..BackendSummary::default()
    }
}

fn document() -> GatewaySnapshot {
    let stream = |id: &str, age_seconds| StreamSummary {
        request_id: id.into(),
        model: "tiny".into(),
        backend: Some("gpu-0".into()),
        phase: "decode".into(),
        age_seconds,
        tokens: 41,
        last_output_age_seconds: Some(0.02),
        ..StreamSummary::default()
    };
    let ended = EndedRequest {
        request_id: "req-ended".into(),
        model: "tiny".into(),
        outcome: "ok".into(),
        slow_cause: Some("engine_queue".into()),
        ttft_seconds: Some(2.5),
        duration_seconds: 9.0,
        ..EndedRequest::default()
    };
    let last_minute = LastMinute {
        seconds: 60.0,
        requests: 120,
        failed: 6,
        refused: 30,
        output_tokens: 600,
        ttft: QUANTILES,
        itl: QUANTILES,
        e2e: QUANTILES,
        ..LastMinute::default()
    };
    GatewaySnapshot {
        version: "0.1.0".into(),
        policy: "kv_aware".into(),
        state: GatewayState::Ready,
        ready: true,
        uptime_seconds: 61.0,
        requests_in_flight: 5,
        queue: vec![QueueSummary {
            class: "default".into(),
            waiting: 3,
        }],
        backends: vec![backend("gpu-1", 0.97), backend("gpu-0", 0.12)],
        streams: StreamsSummary {
            count: 2,
            oldest: vec![stream("req-young", 1.0), stream("req-old", 30.0)],
            ..StreamsSummary::default()
        },
        totals: RequestTotals {
            requests: 10,
            output_tokens: 100,
        },
        harm: Harm::of(&last_minute, LateStreams::default()),
        last_minute,
        ended: vec![ended],
        verdicts: vec![Verdict {
            verdict: "kv_thrashing".into(),
            backend: "gpu-1".into(),
            severity: VerdictSeverity::Critical,
            meaning: "The KV cache is too small.".into(),
            remedy: "Add a backend.".into(),
            ..Verdict::default()
        }],
        ..GatewaySnapshot::default()
    }
}

fn state_with(document: GatewaySnapshot) -> TopState {
    let mut state = TopState::new();
    state.on_document(document);
    state
}

fn state_with_snapshot() -> TopState {
    state_with(document())
}

/// Draws the state as a frame and returns its lines of text, without trailing spaces.
fn render_screen(state: &TopState, width: u16, height: u16) -> Vec<String> {
    render_screen_with(
        state,
        width,
        height,
        FrameOptions {
            has_colour: true,
            has_keys: true,
        },
    )
}

fn render_screen_with(
    state: &TopState,
    width: u16,
    height: u16,
    options: FrameOptions,
) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal
        .draw(|frame| frame.render_widget(TopFrame { state, options }, frame.area()))
        .unwrap();
    let text = terminal.backend().to_string();
    text.lines()
        .map(|line| line.trim_matches('"').trim_end().to_owned())
        .collect()
}

/// The cells of a frame of 40 lines, with their styles.
fn render_cells(state: &TopState, width: u16, has_colour: bool) -> Buffer {
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, 40));
    let options = FrameOptions {
        has_colour,
        has_keys: true,
    };
    TopFrame { state, options }.render(buffer.area, &mut buffer);
    buffer
}

fn has_line_with(lines: &[String], words: &str) -> bool {
    lines.iter().any(|line| line.contains(words))
}

/// Asserts that some line has each of the words in `present`, and that no line has one of those in `absent`.
fn assert_shown(lines: &[String], present: &[&str], absent: &[&str]) {
    let screen = lines.join("\n");
    for words in present {
        assert!(has_line_with(lines, words), "no `{words}` in:\n{screen}");
    }
    for words in absent {
        assert!(!has_line_with(lines, words), "`{words}` in:\n{screen}");
    }
}

#[test]
fn any_width_shows_backends_streams_and_verdicts() {
    for width in [40, 80, 200] {
        let lines = render_screen(&state_with_snapshot(), width, 40);
        let words = [
            "ready",
            "gpu-0",
            "33ms",
            "req-old",
            "req-ende",
            "kv_thrashing",
        ];
        assert_shown(&lines, &words, &[]);
        assert!(lines[0].ends_with("up 1m01s"), "{}", lines[0]);
        assert_shown(
            &lines,
            &["2 req/s", "TTFT p50 31ms p95 120ms p99 400ms"],
            &[],
        );
        assert!(
            lines
                .iter()
                .all(|line| line.chars().count() <= width.into())
        );
    }
}

#[test]
fn only_ready_is_green() {
    let mut state = TopState::new();
    for (gateway, label, colour) in [
        (GatewayState::Ready, "ready", Color::Green),
        (GatewayState::Degraded, "degraded", Color::Yellow),
        (GatewayState::Slow, "slow", Color::Red),
        (GatewayState::Refusing, "refusing", Color::Red),
        (GatewayState::Failing, "failing", Color::Red),
        (GatewayState::Down, "down", Color::Red),
        (GatewayState::ShuttingDown, "shutting down", Color::Yellow),
    ] {
        let reasons = vec![
            "2 of 3 backends drained".to_owned(),
            "94 % refused".to_owned(),
        ];
        state.on_document(GatewaySnapshot {
            state: gateway,
            state_reasons: reasons,
            ..document()
        });
        let lines = render_screen(&state, 80, 40);
        assert!(lines[0].contains(label), "{}", lines[0]);
        assert_eq!(lines[1], "2 of 3 backends drained; 94 % refused");
        let buffer = render_cells(&state, 80, true);
        let column = lines[0].find(label).unwrap() as u16;
        assert_eq!(buffer[(column, 0)].fg, colour, "{label}");
    }
}

#[test]
fn the_state_of_each_backend_is_shown() {
    let backend = |name: &str, state: &str, up| {
        let mut backend = backend(name, 0.1);
        backend.condition = match state {
            "ejected" => BackendCondition::Ejected,
            _ => BackendCondition::Excluded,
        };
        (backend.facts.state, backend.facts.up) = (state.into(), up);
        backend.facts.breaker = if state == "ejected" { "open" } else { "closed" }.into();
        backend.facts.weight = u32::from(state != "zero_weight");
        backend.facts.drained = state == "drained";
        backend
    };
    let backends = vec![
        backend("gpu-0", "ejected", true),
        backend("gpu-1", "ejected", false),
        backend("gpu-2", "asleep", false),
        backend("gpu-3", "zero_weight", false),
        backend("gpu-4", "drained", false),
    ];
    let state = state_with(GatewaySnapshot {
        backends,
        panic_mode: true,
        ..document()
    });
    let shown = render_screen(&state, 80, 40);
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
fn a_wide_screen_shows_more_columns_and_figures() {
    let wide = render_screen(&state_with_snapshot(), 200, 40);
    let figures = "5% failed   0% 4xx   25% refused";
    let verdict = "critical  gpu-1: The KV cache is too small.  [kv_thrashing]";
    assert_shown(&wide, &[figures, verdict, "  -> Add a backend."], &[]);
    assert_shown(&wide, &["SCRAPE", "CLIENT", "engine queue"], &[]);
    let narrow = render_screen(&state_with_snapshot(), 40, 40);
    assert_shown(&narrow, &["TTFT"], &["SCRAPE", "CLIENT"]);
}

#[test]
fn a_low_screen_shows_only_the_current_pane() {
    let mut state = state_with_snapshot();
    assert_shown(&render_screen(&state, 80, 15), &["gpu-0"], &["req-old"]);
    state.on_key(KeyCode::Tab);
    assert_shown(&render_screen(&state, 80, 15), &["req-old"], &["97%"]);
}

#[test]
fn no_screen_size_causes_a_panic() {
    assert!(has_line_with(
        &render_screen(&state_with_snapshot(), 20, 10),
        "too small"
    ));
    for width in 1..60 {
        for height in 1..30 {
            assert!(!render_screen(&state_with_snapshot(), width, height).is_empty());
        }
    }
}

#[test]
fn a_frame_without_colour_has_no_coloured_cell() {
    let state = state_with_snapshot();
    for has_colour in [true, false] {
        let buffer = render_cells(&state, 80, has_colour);
        let is_coloured = buffer.content().iter().any(|cell| cell.fg != Color::Reset);
        assert_eq!(is_coloured, has_colour);
    }
}

#[test]
fn a_screen_without_a_snapshot_shows_the_reason() {
    let mut state = TopState::new();
    assert!(has_line_with(
        &render_screen(&state, 80, 24),
        "connecting to the gateway"
    ));
    state.on_problem("the gateway does not answer: connection refused");
    let lines = render_screen(&state, 80, 24);
    assert_shown(&lines, &["no update: the gateway does not answer"], &[]);
    state.on_document(document());
    assert!(!has_line_with(&render_screen(&state, 80, 24), "no update"));
    state.on_problem("gone");
    assert_shown(
        &render_screen(&state, 80, 40),
        &["no update: gone", "gpu-0"],
        &[],
    );
}

#[test]
fn a_text_shows_all_rows_without_keys() {
    let state = state_with_snapshot();
    let options = FrameOptions {
        has_colour: false,
        has_keys: false,
    };
    let height = TopFrame {
        state: &state,
        options,
    }
    .height(80);
    let lines = render_screen_with(&state, 80, height, options);
    assert_shown(&lines, &["req-old", "req-youn", "req-ende"], &["q quit"]);
}

#[test]
fn key_presses_sort_and_filter_the_lists() {
    let mut state = state_with_snapshot();
    let order = |state: &TopState, first: &str, second: &str| {
        let lines = render_screen(state, 80, 40);
        let position = |words: &str| lines.iter().position(|line| line.starts_with(words));
        position(first) < position(second)
    };
    assert!(order(&state, "gpu-0", "gpu-1") && order(&state, "req-old", "req-youn"));
    state.on_key(KeyCode::Char('r'));
    assert!(order(&state, "gpu-1", "gpu-0"));
    for letter in "/GPU-0".chars() {
        state.on_key(KeyCode::Char(letter));
    }
    state.on_key(KeyCode::Enter);
    let lines = render_screen(&state, 80, 40);
    assert_shown(
        &lines,
        &["12%", "filter: GPU-0", "no row matches the filter"],
        &["97%"],
    );
    state.on_key(KeyCode::Esc);
    assert!(has_line_with(&render_screen(&state, 80, 40), "97%"));
}

#[test]
fn a_backend_is_drained_only_after_confirmation() {
    let backends = ["gpu-1", "gpu-0", "gpu-2"]
        .map(|name| backend(name, 0.1))
        .to_vec();
    let mut state = state_with(GatewaySnapshot {
        backends,
        ..document()
    });
    assert_eq!(state.on_key(KeyCode::Char('d')), None);
    assert!(has_line_with(
        &render_screen(&state, 80, 24),
        "drain gpu-0? y / n"
    ));
    assert_eq!(state.on_key(KeyCode::Char('n')), None);
    state.on_key(KeyCode::Down);
    state.on_key(KeyCode::Char('d'));
    let action = UserAction::Drain {
        backend: "gpu-1".into(),
        is_drained: true,
    };
    assert_eq!(state.on_key(KeyCode::Char('y')), Some(action));
    state.on_key(KeyCode::Char('2'));
    assert_eq!(state.on_key(KeyCode::Char('d')), None);
    assert!(has_line_with(
        &render_screen(&state, 80, 24),
        "choose a backend"
    ));
}

#[test]
fn enter_shows_details_that_scroll() {
    let mut state = state_with_snapshot();
    assert_eq!(state.on_key(KeyCode::Enter), None);
    assert!(has_line_with(
        &render_screen(&state, 80, 24),
        "circuit breaker closed"
    ));
    state.on_key(KeyCode::Esc);
    state.on_key(KeyCode::Char('3'));
    let action = UserAction::ShowDecision {
        request_id: "req-ended".into(),
    };
    assert_eq!(state.on_key(KeyCode::Enter), Some(action));
    state.on_text("why", (0..100).map(|line| format!("line {line}")).collect());
    assert!(has_line_with(&render_screen(&state, 80, 24), "line 0"));
    state.on_key(KeyCode::PageDown);
    assert_shown(&render_screen(&state, 80, 24), &["line 10"], &["line 9"]);
    state.on_key(KeyCode::Esc);
    assert!(!has_line_with(&render_screen(&state, 80, 24), "line 10"));
}

#[test]
fn a_lost_selection_moves_to_the_last_row() {
    let mut state = state_with_snapshot();
    state.on_key(KeyCode::End);
    state.on_document(GatewaySnapshot {
        backends: vec![backend("gpu-9", 0.1)],
        ..document()
    });
    state.on_key(KeyCode::Char('d'));
    let lines = render_screen(&state, 80, 24);
    assert!(
        has_line_with(&lines, "drain gpu-9? It is the LAST for all models"),
        "{lines:?}"
    );
    assert_eq!(state.on_key(KeyCode::Char('y')), None);
}

#[test]
fn a_paused_screen_ignores_new_snapshots() {
    let mut state = state_with_snapshot();
    state.on_key(KeyCode::Char('p'));
    state.on_document(GatewaySnapshot {
        backends: Vec::new(),
        ..document()
    });
    assert_shown(&render_screen(&state, 80, 40), &["paused", "gpu-0"], &[]);
}

#[test]
fn backends_that_need_attention_come_first() {
    let mut backends: Vec<BackendSummary> = (10..60)
        .map(|number| backend(&format!("gpu-{number}"), 0.1))
        .collect();
    backends[30].condition = BackendCondition::Slow;
    backends[40].condition = BackendCondition::Down;
    let state = state_with(GatewaySnapshot {
        backends,
        verdicts: Vec::new(),
        ..document()
    });
    let lines = render_screen(&state, 40, 40);
    assert!(
        has_line_with(&lines, "backends: 48 ok, 1 down, 1 slow"),
        "{lines:?}"
    );
    let first = lines
        .iter()
        .position(|line| line.starts_with("BACKEND"))
        .unwrap()
        + 1;
    let rows: Vec<&str> = lines[first..first + 3]
        .iter()
        .map(|line| &line[..6])
        .collect();
    assert_eq!(rows, ["gpu-50", "gpu-40", "gpu-10"]);
    let buffer = render_cells(&state, 40, true);
    let colours = [0, 1, 2].map(|row| buffer[(0, (first + row) as u16)].fg);
    assert_eq!(colours, [Color::Red, Color::Yellow, Color::Reset]);
}
