//! The columns of the three panes, and the rows of a snapshot.

use super::formatting::{count, number, percent, seconds, text};
use super::pane::Pane;
use std::cmp::Ordering;
use tokenweir_api::{BackendSummary, EndedRequest, GatewaySnapshot, StreamSummary};

/// A column of a pane.
#[derive(Debug, Clone, Copy)]
pub(super) struct TableColumn {
    pub(super) title: &'static str,
    /// Width in characters; the first column of a pane also gets the remaining width.
    pub(super) width: u16,
    pub(super) is_numeric: bool,
    /// Columns with a higher rank are dropped first on a narrow screen.
    pub(super) rank: u8,
}

/// One row of a pane.
#[derive(Debug, Clone)]
pub(super) struct TableRow {
    pub(super) cells: Vec<TableCell>,
    /// The name of the backend, or the id of the request.
    pub(super) name: String,
    pub(super) is_drained: bool,
}

/// The text of a cell, its sort key and its tone.
#[derive(Debug, Clone)]
pub(super) struct TableCell {
    pub(super) text: String,
    order: SortKey,
    pub(super) tone: CellTone,
}

/// The tone of a text, which determines its colour.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum CellTone {
    #[default]
    Plain,
    Quiet,
    Good,
    Warning,
    Bad,
}

#[derive(Debug, Clone, PartialEq, PartialOrd)]
enum SortKey {
    Text(String),
    Number(f64),
    /// Unknown: sorted last in either order.
    None,
}

const fn word(title: &'static str, width: u16, rank: u8) -> TableColumn {
    TableColumn { title, width, is_numeric: false, rank }
}

const fn figure(title: &'static str, width: u16, rank: u8) -> TableColumn {
    TableColumn { title, width, is_numeric: true, rank }
}

const BACKEND_COLUMNS: &[TableColumn] = &[
    word("BACKEND", 12, 0),
    word("STATE", 9, 0),
    figure("KV", 5, 1),
    figure("QUEUE", 6, 1),
    figure("RUN", 5, 2),
    figure("FLIGHT", 7, 4),
    figure("SHARE", 6, 3),
    figure("TTFT", 7, 5),
    figure("SCRAPE", 7, 6),
];

const STREAM_COLUMNS: &[TableColumn] = &[
    word("STREAM", 10, 0),
    word("PHASE", 8, 0),
    figure("AGE", 7, 1),
    figure("TOKENS", 7, 2),
    figure("LAST", 7, 1),
    word("BACKEND", 18, 3),
    word("MODEL", 18, 4),
    word("TENANT", 12, 5),
];

const ENDED_COLUMNS: &[TableColumn] = &[
    word("ENDED", 10, 0),
    word("OUTCOME", 10, 0),
    word("SLOW", 13, 2),
    figure("TTFT", 7, 1),
    figure("TOOK", 7, 1),
    figure("TOKENS", 7, 4),
    figure("AGO", 7, 3),
    word("BACKEND", 18, 5),
    word("MODEL", 18, 6),
    word("TENANT", 12, 7),
    word("TRACE", 32, 8),
];

/// The columns of a pane.
pub(super) const fn columns(pane: Pane) -> &'static [TableColumn] {
    match pane {
        Pane::Backends => BACKEND_COLUMNS,
        Pane::Streams => STREAM_COLUMNS,
        Pane::Ended => ENDED_COLUMNS,
    }
}

/// The rows of a pane, in the order of the snapshot.
pub(super) fn rows(pane: Pane, document: &GatewaySnapshot) -> Vec<TableRow> {
    match pane {
        Pane::Backends => document.backends.iter().map(backend_row).collect(),
        Pane::Streams => document.streams.oldest.iter().map(stream_row).collect(),
        Pane::Ended => document.ended.iter().map(ended_row).collect(),
    }
}

fn backend_row(backend: &BackendSummary) -> TableRow {
    let (state, tone) = backend_state(backend);
    let kv = match backend.kv_usage {
        Some(usage) if usage >= 0.95 => CellTone::Bad,
        Some(usage) if usage >= 0.85 => CellTone::Warning,
        _ => CellTone::Plain,
    };
    let is_stale = backend.scrape_error.is_some()
        || backend.scrape_age_seconds.is_some_and(|seconds| seconds > 10.0);
    let age_tone = if is_stale { CellTone::Warning } else { CellTone::Quiet };
    TableRow {
        cells: vec![
            TableCell::word(Some(&backend.name)),
            TableCell::word(Some(state)).toned(tone),
            TableCell::figure(backend.kv_usage, percent).toned(kv),
            TableCell::figure(backend.waiting, count),
            TableCell::figure(backend.running, count),
            TableCell::figure(Some(f64::from(backend.in_flight)), count),
            TableCell::figure(backend.share, percent),
            TableCell::figure(backend.ttft_seconds, seconds),
            TableCell::figure(backend.scrape_age_seconds, seconds).toned(age_tone),
        ],
        name: backend.name.clone(),
        is_drained: backend.drained,
    }
}

/// The state of a backend in one or two words, with its tone.
fn backend_state(backend: &BackendSummary) -> (&str, CellTone) {
    match backend.state.as_str() {
        "drained" if backend.in_flight > 0 => ("draining", CellTone::Quiet),
        "zero_weight" => ("weight 0", CellTone::Quiet),
        "down" => ("down", CellTone::Bad),
        "ejected" if backend.up => ("panic", CellTone::Warning),
        "ejected" => ("ejected", CellTone::Warning),
        "available" if backend.breaker != "closed" => (&backend.breaker, CellTone::Warning),
        "available" if backend.stalled > 0 => ("stalls", CellTone::Warning),
        "available" => ("up", CellTone::Good),
        state => (state, CellTone::Quiet),
    }
}

fn stream_row(stream: &StreamSummary) -> TableRow {
    let tone = match stream.phase.as_str() {
        "decode" => CellTone::Good,
        "stalled" => CellTone::Bad,
        "write_stalled" => CellTone::Warning,
        _ => CellTone::Quiet,
    };
    TableRow {
        cells: vec![
            TableCell::word(Some(&stream.request_id)),
            TableCell::word(Some(&stream.phase)).toned(tone),
            TableCell::figure(Some(stream.age_seconds), seconds),
            TableCell::figure(Some(stream.tokens as f64), number),
            TableCell::figure(stream.last_output_age_seconds, seconds),
            TableCell::word(stream.backend.as_deref()),
            TableCell::word(Some(&stream.model)),
            TableCell::word(stream.tenant.as_deref()),
        ],
        name: stream.request_id.clone(),
        is_drained: false,
    }
}

fn ended_row(request: &EndedRequest) -> TableRow {
    let tone = match request.outcome.as_str() {
        "ok" => CellTone::Good,
        "cancelled" => CellTone::Quiet,
        _ => CellTone::Bad,
    };
    TableRow {
        cells: vec![
            TableCell::word(Some(&request.request_id)),
            TableCell::word(Some(&request.outcome)).toned(tone),
            TableCell::word(request.slow_cause.as_deref()).toned(CellTone::Warning),
            TableCell::figure(request.ttft_seconds, seconds),
            TableCell::figure(Some(request.duration_seconds), seconds),
            TableCell::figure(request.output_tokens.map(|tokens| tokens as f64), number),
            TableCell::figure(Some(request.age_seconds), seconds).toned(CellTone::Quiet),
            TableCell::word(request.backend.as_deref()),
            TableCell::word(Some(&request.model)),
            TableCell::word(request.tenant.as_deref()),
            TableCell::word(request.trace_id.as_deref()).toned(CellTone::Quiet),
        ],
        name: request.request_id.clone(),
        is_drained: false,
    }
}

// === impl Row, TableCell ===

impl TableRow {
    /// Whether any cell contains the filter, which is in lower case.
    pub(super) fn fits(&self, filter: &str) -> bool {
        self.cells.iter().any(|cell| cell.text.to_lowercase().contains(filter))
    }

    /// The order of two rows by a column. Unknown values come last.
    pub(super) fn compare(&self, other: &Self, column: usize, is_down: bool) -> Ordering {
        let (Some(left), Some(right)) = (self.cells.get(column), other.cells.get(column)) else {
            return Ordering::Equal;
        };
        match (&left.order, &right.order) {
            (SortKey::None, SortKey::None) => Ordering::Equal,
            (SortKey::None, _) => Ordering::Greater,
            (_, SortKey::None) => Ordering::Less,
            (left, right) => {
                let order = left.partial_cmp(right).unwrap_or(Ordering::Equal);
                if is_down { order.reverse() } else { order }
            }
        }
    }
}

impl TableCell {
    fn word(value: Option<&str>) -> Self {
        let order = value.map_or(SortKey::None, |value| SortKey::Text(value.to_owned()));
        Self { text: text(value), order, tone: CellTone::Plain }
    }

    fn figure(value: Option<f64>, words: impl FnOnce(Option<f64>) -> String) -> Self {
        let order = value.map_or(SortKey::None, SortKey::Number);
        Self { text: words(value), order, tone: CellTone::Plain }
    }

    fn toned(self, tone: CellTone) -> Self {
        Self { tone, ..self }
    }
}
