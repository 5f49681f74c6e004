//! The columns of the three panes, and the rows that a document makes of them.

use super::state::Pane;
use super::words::{count, number, percent, seconds, text};
use std::cmp::Ordering;
use tokenweir_api::{Document, EndedRequest, Replica, Stream};

/// A column.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub(super) title: &'static str,
    /// In characters; the first column of a pane takes what is left.
    pub(super) width: u16,
    pub(super) is_figure: bool,
    /// Those with a higher one go first when there is no room.
    pub(super) rank: u8,
}

/// One line of a pane.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) cells: Vec<Cell>,
    /// The replica's name, or the request's id.
    pub(super) name: String,
    pub(super) is_drained: bool,
}

/// What stands in it, what it is sorted by, and how it is to be taken.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    pub(super) text: String,
    order: Order,
    pub(super) tone: Tone,
}

/// How something is to be taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Tone {
    #[default]
    Plain,
    Quiet,
    Good,
    Warning,
    Bad,
}

#[derive(Debug, Clone, PartialEq, PartialOrd)]
enum Order {
    Word(String),
    Figure(f64),
    /// Not known: it stands last in either order.
    None,
}

const fn word(title: &'static str, width: u16, rank: u8) -> Column {
    Column { title, width, is_figure: false, rank }
}

const fn figure(title: &'static str, width: u16, rank: u8) -> Column {
    Column { title, width, is_figure: true, rank }
}

const REPLICAS: &[Column] = &[
    word("REPLICA", 12, 0),
    word("STATE", 9, 0),
    figure("KV", 5, 1),
    figure("QUEUE", 6, 1),
    figure("RUN", 5, 2),
    figure("FLIGHT", 7, 4),
    figure("SHARE", 6, 3),
    figure("TTFT", 7, 5),
    figure("SAMPLE", 7, 6),
];

const STREAMS: &[Column] = &[
    word("STREAM", 10, 0),
    word("PHASE", 8, 0),
    figure("AGE", 7, 1),
    figure("TOKENS", 7, 2),
    figure("LAST", 7, 1),
    word("REPLICA", 18, 3),
    word("MODEL", 18, 4),
    word("TENANT", 12, 5),
];

const ENDED: &[Column] = &[
    word("ENDED", 10, 0),
    word("OUTCOME", 10, 0),
    word("SLOW", 13, 2),
    figure("TTFT", 7, 1),
    figure("TOOK", 7, 1),
    figure("TOKENS", 7, 4),
    figure("AGO", 7, 3),
    word("REPLICA", 18, 5),
    word("MODEL", 18, 6),
    word("TENANT", 12, 7),
    word("TRACE", 32, 8),
];

/// The columns of a pane.
pub(super) const fn columns(pane: Pane) -> &'static [Column] {
    match pane {
        Pane::Replicas => REPLICAS,
        Pane::Streams => STREAMS,
        Pane::Ended => ENDED,
    }
}

/// The rows of a pane, as the document has them.
pub(super) fn rows(pane: Pane, document: &Document) -> Vec<Row> {
    match pane {
        Pane::Replicas => document.replicas.iter().map(replica).collect(),
        Pane::Streams => document.streams.oldest.iter().map(stream).collect(),
        Pane::Ended => document.ended.iter().map(ended).collect(),
    }
}

fn replica(replica: &Replica) -> Row {
    let (state, tone) = standing(replica);
    let kv = match replica.kv_usage {
        Some(usage) if usage >= 0.95 => Tone::Bad,
        Some(usage) if usage >= 0.85 => Tone::Warning,
        _ => Tone::Plain,
    };
    let is_late = replica.metrics_error.is_some()
        || replica.sample_age_seconds.is_some_and(|seconds| seconds > 10.0);
    let late = if is_late { Tone::Warning } else { Tone::Quiet };
    Row {
        cells: vec![
            Cell::word(Some(&replica.name)),
            Cell::word(Some(state)).toned(tone),
            Cell::figure(replica.kv_usage, percent).toned(kv),
            Cell::figure(replica.waiting, count),
            Cell::figure(replica.running, count),
            Cell::figure(Some(f64::from(replica.in_flight)), count),
            Cell::figure(replica.share, percent),
            Cell::figure(replica.ttft_seconds, seconds),
            Cell::figure(replica.sample_age_seconds, seconds).toned(late),
        ],
        name: replica.name.clone(),
        is_drained: replica.drained,
    }
}

/// How a replica is, in one word.
fn standing(replica: &Replica) -> (&str, Tone) {
    match replica.state.as_str() {
        "drained" if replica.in_flight > 0 => ("draining", Tone::Quiet),
        "zero_weight" => ("weight 0", Tone::Quiet),
        "down" => ("down", Tone::Bad),
        "ejected" if replica.up => ("panic", Tone::Warning),
        "ejected" => ("ejected", Tone::Warning),
        "available" if replica.breaker != "closed" => (&replica.breaker, Tone::Warning),
        "available" if replica.stalled > 0 => ("stalls", Tone::Warning),
        "available" => ("up", Tone::Good),
        state => (state, Tone::Quiet),
    }
}

fn stream(stream: &Stream) -> Row {
    let tone = match stream.phase.as_str() {
        "decode" => Tone::Good,
        "stalled" => Tone::Bad,
        "held" => Tone::Warning,
        _ => Tone::Quiet,
    };
    Row {
        cells: vec![
            Cell::word(Some(&stream.request_id)),
            Cell::word(Some(&stream.phase)).toned(tone),
            Cell::figure(Some(stream.age_seconds), seconds),
            Cell::figure(Some(stream.tokens as f64), number),
            Cell::figure(stream.silence_seconds, seconds),
            Cell::word(stream.replica.as_deref()),
            Cell::word(Some(&stream.model)),
            Cell::word(stream.tenant.as_deref()),
        ],
        name: stream.request_id.clone(),
        is_drained: false,
    }
}

fn ended(request: &EndedRequest) -> Row {
    let tone = match request.outcome.as_str() {
        "ok" => Tone::Good,
        "cancelled" => Tone::Quiet,
        _ => Tone::Bad,
    };
    Row {
        cells: vec![
            Cell::word(Some(&request.request_id)),
            Cell::word(Some(&request.outcome)).toned(tone),
            Cell::word(request.slow.as_deref()).toned(Tone::Warning),
            Cell::figure(request.ttft_seconds, seconds),
            Cell::figure(Some(request.duration_seconds), seconds),
            Cell::figure(request.output_tokens.map(|tokens| tokens as f64), number),
            Cell::figure(Some(request.age_seconds), seconds).toned(Tone::Quiet),
            Cell::word(request.replica.as_deref()),
            Cell::word(Some(&request.model)),
            Cell::word(request.tenant.as_deref()),
            Cell::word(request.trace_id.as_deref()).toned(Tone::Quiet),
        ],
        name: request.request_id.clone(),
        is_drained: false,
    }
}

// === impl Row, Cell ===

impl Row {
    /// Whether any cell has this in it. `filter` is in lower case.
    pub(super) fn fits(&self, filter: &str) -> bool {
        self.cells.iter().any(|cell| cell.text.to_lowercase().contains(filter))
    }

    /// Which comes first, by a column.
    pub(super) fn compare(&self, other: &Self, column: usize, is_down: bool) -> Ordering {
        let (Some(left), Some(right)) = (self.cells.get(column), other.cells.get(column)) else {
            return Ordering::Equal;
        };
        match (&left.order, &right.order) {
            (Order::None, Order::None) => Ordering::Equal,
            (Order::None, _) => Ordering::Greater,
            (_, Order::None) => Ordering::Less,
            (left, right) => {
                let order = left.partial_cmp(right).unwrap_or(Ordering::Equal);
                if is_down { order.reverse() } else { order }
            }
        }
    }
}

impl Cell {
    fn word(value: Option<&str>) -> Self {
        let order = value.map_or(Order::None, |value| Order::Word(value.to_owned()));
        Self { text: text(value), order, tone: Tone::Plain }
    }

    fn figure(value: Option<f64>, words: impl FnOnce(Option<f64>) -> String) -> Self {
        let order = value.map_or(Order::None, Order::Figure);
        Self { text: words(value), order, tone: Tone::Plain }
    }

    fn toned(self, tone: Tone) -> Self {
        Self { tone, ..self }
    }
}
