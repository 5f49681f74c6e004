//! The columns of the three panes, and the rows that a snapshot has in each pane.

use super::formatting::{count, natural_key, number, percent, seconds, short_id, text, words};
use super::pane::Pane;
use std::cmp::Ordering;
use tokenweir_api::{
    BackendSummary, EndedRequest, GatewaySnapshot, GpuSummary, GroupSummary, StreamSummary,
};

#[derive(Debug, Clone, Copy)]
pub(super) struct TableColumn {
    pub(super) title: &'static str,
    /// Minimum width in characters. A text column grows until its longest text fits. The column
    /// [`GROWING_COLUMN`] grows first.
    pub(super) width: u16,
    pub(super) is_numeric: bool,
    /// Order in which columns are omitted on a narrow screen. The column with the highest number is omitted
    /// first.
    pub(super) priority: u8,
}

#[derive(Debug, Clone)]
pub(super) struct TableRow {
    pub(super) cells: Vec<TableCell>,
    /// The name of the backend, or the id of the request.
    pub(super) name: String,
    /// The tone of all cells without a tone of their own. A tone determines the colour.
    pub(super) tone: CellTone,
}

#[derive(Debug, Clone)]
pub(super) struct TableCell {
    pub(super) text: String,
    /// The value by which rows are sorted. `None`: unknown. The row is the last one in both sort directions.
    sort_key: Option<SortKey>,
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

/// The value of a cell, by which rows are sorted.
#[derive(Debug, Clone, PartialEq, PartialOrd)]
enum SortKey {
    Text(String),
    Number(f64),
}

/// Age in seconds from which GPU values are marked as old.
const MAX_GPU_AGE_SECONDS: f64 = 30.0;

const fn text_column(title: &'static str, width: u16, priority: u8) -> TableColumn {
    TableColumn {
        title,
        width,
        is_numeric: false,
        priority,
    }
}

const fn number_column(title: &'static str, width: u16, priority: u8) -> TableColumn {
    TableColumn {
        title,
        width,
        is_numeric: true,
        priority,
    }
}

/// The columns of the pane of backends. TTFT shows most faults, so a narrow screen omits it only after all
/// other numbers.
const BACKEND_COLUMNS: &[TableColumn] = &[
    text_column(GROWING_COLUMN, 12, 0),
    text_column("STATE", 9, 0),
    number_column("TTFT", 7, 1),
    number_column("QUEUE", 6, 2),
    number_column("FAIL", 5, 3),
    number_column("4XX", 5, 4),
    number_column("KV", 5, 5),
    number_column("RUN", 5, 6),
    number_column("SHARE", 6, 7),
    number_column("FLIGHT", 7, 8),
    number_column("SCRAPE", 7, 9),
    text_column(EVENTS_COLUMN, 9, 10),
    number_column(GPU_COLUMN, 5, 11),
    number_column(GPU_MEMORY_COLUMN, 8, 12),
    text_column("MODEL", 12, FIRST_SPARE_PRIORITY),
    text_column("WHY", 20, FIRST_SPARE_PRIORITY + 1),
];

/// Lowest priority of columns that are shown only if no name of a backend must be cut for them.
pub(super) const FIRST_SPARE_PRIORITY: u8 = 20;

/// The title of the column with the names of backends, in all panes.
pub(super) const GROWING_COLUMN: &str = "BACKEND";
/// The title of the column with the states of KV event streams.
const EVENTS_COLUMN: &str = "EVENTS";
/// The titles of the two GPU columns: utilisation and memory.
const GPU_COLUMN: &str = "GPU";
const GPU_MEMORY_COLUMN: &str = "GPU MEM";
/// The title of the column with the times to the first answer. Only requests with reasoning have such a time.
const ANSWER_COLUMN: &str = "ANSWER";

/// Index of the column STATE, which sorts backends by the urgency of their condition.
pub(super) const BACKEND_STATE_COLUMN: usize = 1;

const STREAM_COLUMNS: &[TableColumn] = &[
    text_column("STREAM", 8, 0),
    text_column("PHASE", 9, 0),
    number_column("AGE", 7, 1),
    number_column("TOKENS", 7, 2),
    number_column("LAST", 7, 1),
    number_column("PROMPT", 7, 3),
    text_column("CLIENT", 15, 4),
    text_column(GROWING_COLUMN, 18, 5),
    text_column("MODEL", 18, 6),
];

const ENDED_COLUMNS: &[TableColumn] = &[
    text_column("ENDED", 8, 0),
    text_column("OUTCOME", 10, 0),
    text_column("SLOW", 13, 2),
    number_column("TTFT", 7, 1),
    number_column(ANSWER_COLUMN, 7, 1),
    number_column("TOOK", 7, 1),
    number_column("TOKENS", 7, 4),
    number_column("AGO", 7, 3),
    text_column(GROWING_COLUMN, 18, 5),
    text_column("CLIENT", 15, 6),
    text_column("MODEL", 18, 7),
    text_column("TRACE", 32, 8),
];

const MODEL_COLUMNS: &[TableColumn] = &group_columns("MODEL");
const TENANT_COLUMNS: &[TableColumn] = &group_columns("TENANT");

/// The columns of the panes of models and of tenants.
const fn group_columns(title: &'static str) -> [TableColumn; 9] {
    [
        text_column(title, 12, 0),
        number_column("REQ/S", 7, 1),
        number_column("TTFT", 7, 1),
        number_column("FAIL", 5, 2),
        number_column("4XX", 5, 3),
        number_column("REFUSED", 8, 4),
        number_column("TOK/S", 7, 2),
        number_column("PROMPT/S", 9, 5),
        number_column("OPEN", 5, 2),
    ]
}

pub(super) const fn columns(pane: Pane) -> &'static [TableColumn] {
    match pane {
        Pane::Models => MODEL_COLUMNS,
        Pane::Tenants => TENANT_COLUMNS,
        Pane::Backends => BACKEND_COLUMNS,
        Pane::Streams => STREAM_COLUMNS,
        Pane::Ended => ENDED_COLUMNS,
    }
}

/// The indices of the columns of a pane that are shown for this snapshot. The columns of GPUs, of KV events
/// and of the first answer are shown only if the snapshot has such values.
pub(super) fn shown_columns(pane: Pane, document: Option<&GatewaySnapshot>) -> Vec<usize> {
    let has = |reads: fn(&BackendSummary) -> bool| {
        document.is_some_and(|document| document.backends.iter().any(reads))
    };
    let has_answer = document.is_some_and(|document| {
        document
            .ended
            .iter()
            .any(|request| request.first_answer_seconds.is_some())
    });
    let is_shown = |column: &TableColumn| match column.title {
        ANSWER_COLUMN => has_answer,
        EVENTS_COLUMN => has(|backend| backend.kv_events.is_some()),
        GPU_COLUMN | GPU_MEMORY_COLUMN => has(|backend| backend.gpus.is_some()),
        _ => true,
    };
    let shown = columns(pane)
        .iter()
        .enumerate()
        .filter(|(_, column)| is_shown(column));
    shown.map(|(index, _)| index).collect()
}

/// The rows of a pane, in the order of the snapshot.
pub(super) fn rows(pane: Pane, document: &GatewaySnapshot) -> Vec<TableRow> {
    let group_rows = |groups: &[GroupSummary]| {
        let seconds = document.last_minute.seconds;
        groups
            .iter()
            .map(|group| group_row(group, seconds))
            .collect()
    };
    match pane {
        Pane::Models => group_rows(&document.models),
        Pane::Tenants => group_rows(&document.tenants),
        Pane::Backends => document.backends.iter().map(backend_row).collect(),
        Pane::Streams => document.streams.oldest.iter().map(stream_row).collect(),
        Pane::Ended => document.ended.iter().map(ended_row).collect(),
    }
}

fn warning_if(needs_attention: bool) -> CellTone {
    if needs_attention {
        CellTone::Warning
    } else {
        CellTone::Plain
    }
}

fn scrape_age_tone(backend: &BackendSummary) -> CellTone {
    let is_old = backend
        .scrape_age_seconds
        .is_some_and(|seconds| seconds > 10.0);
    if is_old || backend.scrape_error.is_some() {
        CellTone::Warning
    } else {
        CellTone::Quiet
    }
}

fn backend_row(backend: &BackendSummary) -> TableRow {
    let (state, tone) = backend_state(backend);
    let condition = backend.condition;
    let is_failing = backend.failed_attempts > 0;
    let has_client_errors = backend.client_errors.values().any(|count| *count > 0);
    let is_missing = matches!(backend.kv_events.as_deref(), Some("off" | "gap"));
    let gpus = backend.gpus.clone().unwrap_or_default();
    let gpu_tone = gpu_tone(&gpus);
    TableRow {
        cells: vec![
            text_cell(&*backend.name),
            TableCell {
                sort_key: Some(SortKey::Number(f64::from(condition as u8))),
                ..text_cell(state).with_tone(tone)
            },
            number_cell(backend.ttft_seconds, seconds),
            number_cell(backend.waiting, count),
            number_cell(backend.failed_share, percent).with_tone(warning_if(is_failing)),
            number_cell(backend.client_error_share, percent)
                .with_tone(warning_if(has_client_errors)),
            number_cell(backend.kv_usage, percent).with_tone(kv_usage_tone(backend.kv_usage)),
            number_cell(backend.running, count),
            number_cell(backend.share, percent),
            number_cell(f64::from(backend.in_flight), count),
            number_cell(backend.scrape_age_seconds, seconds).with_tone(scrape_age_tone(backend)),
            text_cell(backend.kv_events.as_deref()).with_tone(warning_if(is_missing)),
            number_cell(gpus.utilization, percent).with_tone(gpu_tone),
            number_cell(gpus.memory_usage, percent).with_tone(gpu_tone),
            text_cell(&*backend.models.join(", ")),
            text_cell(backend.condition_reason.as_deref()),
        ],
        name: backend.name.clone(),
        tone: if condition.is_critical() {
            CellTone::Bad
        } else {
            warning_if(condition.needs_attention())
        },
    }
}

/// The tone of a KV usage from 0 to 1. `None`: the usage is unknown.
fn kv_usage_tone(usage: Option<f64>) -> CellTone {
    match usage {
        Some(usage) if usage >= 0.95 => CellTone::Bad,
        Some(usage) if usage >= 0.85 => CellTone::Warning,
        _ => CellTone::Plain,
    }
}

/// The tone of the cells with values of the GPUs of a backend.
fn gpu_tone(gpus: &GpuSummary) -> CellTone {
    if gpus.is_throttled == Some(true) {
        CellTone::Bad
    } else if gpus.scrape_age_seconds > MAX_GPU_AGE_SECONDS {
        CellTone::Quiet
    } else {
        CellTone::Plain
    }
}

/// The text of the column STATE for a backend, with its tone. The state is `panic` if the backend is ejected
/// and panic mode uses it anyway.
fn backend_state(backend: &BackendSummary) -> (&str, CellTone) {
    let word = backend.condition_word();
    match backend.state.as_str() {
        "drained" if backend.in_flight > 0 => ("draining", CellTone::Quiet),
        "drained" if !backend.condition.needs_attention() => ("drained", CellTone::Quiet),
        "ejected" if backend.up => ("panic", CellTone::Warning),
        _ if backend.condition.is_critical() => (word, CellTone::Bad),
        _ if backend.condition.needs_attention() => (word, CellTone::Warning),
        "available" if backend.breaker != "closed" => (&backend.breaker, CellTone::Warning),
        "available" => ("up", CellTone::Plain),
        _ => (word, CellTone::Quiet),
    }
}

/// The row of a model or of a tenant. `seconds_counted`: the length of the last minute, which can be shorter
/// than 60 s.
fn group_row(group: &GroupSummary, seconds_counted: f64) -> TableRow {
    let rate = |count: u64| (seconds_counted > 0.0).then(|| count as f64 / seconds_counted);
    let requests = group.requests;
    let share = |count: u64| (requests > 0).then(|| count as f64 / requests as f64);
    let share_cell =
        |count: u64| number_cell(share(count), percent).with_tone(warning_if(count > 0));
    TableRow {
        cells: vec![
            text_cell(&*group.name),
            number_cell(rate(requests), number),
            number_cell(group.ttft_seconds, seconds),
            share_cell(group.failed),
            share_cell(group.client_errors),
            share_cell(group.refused),
            number_cell(rate(group.output_tokens), number),
            number_cell(rate(group.prompt_tokens), number),
            number_cell(group.open_streams as f64, count),
        ],
        name: group.name.clone(),
        tone: CellTone::Plain,
    }
}

fn stream_row(stream: &StreamSummary) -> TableRow {
    let tone = match stream.phase.as_str() {
        "decode" => CellTone::Plain,
        "stalled" => CellTone::Bad,
        "write_stalled" => CellTone::Warning,
        _ => CellTone::Quiet,
    };
    TableRow {
        cells: vec![
            text_cell(&*short_id(&stream.request_id)),
            text_cell(&*words(&stream.phase)).with_tone(tone),
            number_cell(stream.age_seconds, seconds),
            number_cell(stream.tokens as f64, number),
            number_cell(stream.last_output_age_seconds, seconds),
            number_cell(stream.prompt_tokens as f64, number),
            text_cell(&**stream.tenant.as_ref().unwrap_or(&stream.client)),
            text_cell(stream.backend.as_deref()),
            text_cell(&*stream.model),
        ],
        name: stream.request_id.clone(),
        tone: CellTone::Plain,
    }
}

fn ended_row(request: &EndedRequest) -> TableRow {
    let tone = match request.outcome.as_str() {
        "ok" => CellTone::Plain,
        "cancelled" => CellTone::Quiet,
        _ => CellTone::Bad,
    };
    let slow_cause = request.slow_cause.as_deref().map(words);
    TableRow {
        cells: vec![
            text_cell(&*short_id(&request.request_id)),
            text_cell(&*words(&request.outcome)).with_tone(tone),
            text_cell(slow_cause.as_deref()).with_tone(CellTone::Warning),
            number_cell(request.ttft_seconds, seconds),
            number_cell(request.first_answer_seconds, seconds),
            number_cell(request.duration_seconds, seconds),
            number_cell(request.output_tokens.map(|tokens| tokens as f64), number),
            number_cell(request.age_seconds, seconds).with_tone(CellTone::Quiet),
            text_cell(request.backend.as_deref()),
            text_cell(&**request.tenant.as_ref().unwrap_or(&request.client)),
            text_cell(&*request.model),
            text_cell(request.trace_id.as_deref()).with_tone(CellTone::Quiet),
        ],
        name: request.request_id.clone(),
        tone: CellTone::Plain,
    }
}

impl TableRow {
    /// Whether a cell or the full name contains `filter`, regardless of case. `filter` is in lower case.
    pub(super) fn matches_filter(&self, filter: &str) -> bool {
        let is_match = |words: &str| words.to_lowercase().contains(filter);
        is_match(&self.name) || self.cells.iter().any(|cell| is_match(&cell.text))
    }

    /// The order of two rows by a column, and by name if their values are equal. A row with an unknown value
    /// comes last.
    pub(super) fn compare(&self, other: &Self, column: usize, is_descending: bool) -> Ordering {
        let (Some(left), Some(right)) = (self.cells.get(column), other.cells.get(column)) else {
            return Ordering::Equal;
        };
        let unknown = left.sort_key.is_none().cmp(&right.sort_key.is_none());
        let order = left.sort_key.partial_cmp(&right.sort_key);
        let order = order.unwrap_or(Ordering::Equal);
        let order = order.then_with(|| natural_key(&self.name).cmp(&natural_key(&other.name)));
        unknown.then(if is_descending {
            order.reverse()
        } else {
            order
        })
    }
}

impl TableCell {
    fn with_tone(self, tone: CellTone) -> Self {
        Self { tone, ..self }
    }
}

fn text_cell<'a>(value: impl Into<Option<&'a str>>) -> TableCell {
    let value = value.into();
    TableCell {
        text: text(value.unwrap_or_default()),
        sort_key: value.map(|value| SortKey::Text(natural_key(value))),
        tone: CellTone::Plain,
    }
}

fn number_cell(
    value: impl Into<Option<f64>>,
    format: impl FnOnce(Option<f64>) -> String,
) -> TableCell {
    let value = value.into();
    TableCell {
        text: format(value),
        sort_key: value.map(SortKey::Number),
        tone: CellTone::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_api::GpuSummary;

    #[test]
    fn optional_columns_need_a_backend_with_values() {
        let mut document = GatewaySnapshot::default();
        document.backends.resize(2, BackendSummary::default());
        let optional = |document: &GatewaySnapshot| {
            let shown = shown_columns(Pane::Backends, Some(document));
            let titles = shown.into_iter().map(|index| BACKEND_COLUMNS[index].title);
            let is_optional = |title: &&str| !["MODEL", "WHY"].contains(title);
            titles.skip(11).filter(is_optional).collect::<Vec<_>>()
        };
        assert_eq!(optional(&document), [""; 0]);
        document.backends[1].gpus = Some(GpuSummary::default());
        assert_eq!(optional(&document), [GPU_COLUMN, GPU_MEMORY_COLUMN]);
        document.backends[0].kv_events = Some("gap".into());
        assert_eq!(
            optional(&document),
            [EVENTS_COLUMN, GPU_COLUMN, GPU_MEMORY_COLUMN]
        );
        let cells = &rows(Pane::Backends, &document)[0].cells;
        assert_eq!(
            (cells.len(), &*cells[11].text),
            (BACKEND_COLUMNS.len(), "gap")
        );
    }
}
