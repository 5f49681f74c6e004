//! The parser of metrics pages: reads an [`EngineLoad`] from the lines of a page.

use super::engine_kind::EngineKind;
use super::engine_load::EngineLoad;
use super::lora_adapters::LoraAdapters;
use super::metric_sample::{MAX_NUMBER, MetricSample, lines};
use super::table::{MAX_ROWS, MetricsDialect, RowMatch, RowTarget, line_head};
use super::tables::{DIALECT_COUNT, DIALECTS};

struct PageParser {
    load: EngineLoad,
    /// The engine kind of the first metric whose value was used. Later metrics of other engine kinds are
    /// ignored, because they would set fields that this kind sets. `None`: no value was used yet.
    engine_kind: Option<EngineKind>,
    /// The engine kind of the last metric whose name has a prefix of an engine kind. The value of the metric
    /// need not be used.
    prefix_engine_kind: Option<EngineKind>,
    /// For each row of each dialect, the metric name from which its value was read, as an index in the names of
    /// the row. `u8::MAX`: no value was read.
    name_indexes: [[u8; MAX_ROWS]; DIALECT_COUNT],
    /// The newest timestamp among the series of LoRA adapters read so far, in seconds since the Unix epoch.
    adapters_timestamp: f64,
}

impl EngineLoad {
    /// Parses a metrics page. Lines with unknown metrics are ignored.
    pub fn read(page: &[u8]) -> Self {
        Self::of_lines(lines(page))
    }

    /// Parses the lines of a metrics page, or some of them.
    pub fn of_lines<'a>(lines: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut parser = PageParser::new();
        lines.into_iter().for_each(|line| parser.parse_line(line));
        parser.finish()
    }
}

impl PageParser {
    fn new() -> Self {
        Self {
            load: EngineLoad::default(),
            engine_kind: None,
            prefix_engine_kind: None,
            name_indexes: [[u8::MAX; MAX_ROWS]; DIALECT_COUNT],
            adapters_timestamp: f64::NEG_INFINITY,
        }
    }

    fn parse_line(&mut self, line: &[u8]) {
        if line.first() == Some(&b'#') {
            return;
        }
        // Ray adds the prefix `ray_` to every metric of its actors.
        let line = line.strip_prefix(b"ray_").unwrap_or(line);
        let Some(head) = line_head(line) else { return };
        for (dialect, index) in DIALECTS.iter().zip(0..) {
            if let Some(metric) = dialect.after_prefix(head, line) {
                return self.parse_metric(dialect, index, metric);
            }
        }
    }

    fn parse_metric(&mut self, dialect: &MetricsDialect, index: usize, metric: &[u8]) {
        let is_other_engine = |kind: EngineKind| Some(kind) != dialect.engine_kind;
        if dialect.engine_kind.is_some() && self.engine_kind.is_some_and(is_other_engine) {
            return;
        }
        self.prefix_engine_kind = dialect.engine_kind.or(self.prefix_engine_kind);
        for row_match in dialect.find(metric) {
            if self.store_value(dialect, index, &row_match) {
                self.engine_kind = dialect.engine_kind.or(self.engine_kind);
            }
        }
    }

    /// Stores the value of a line. Returns whether a valid value was stored.
    fn store_value(
        &mut self,
        dialect: &MetricsDialect,
        index: usize,
        row_match: &RowMatch<'_>,
    ) -> bool {
        let name_index = &mut self.name_indexes[index][row_match.row];
        // A name with a lower index is preferred, and its value has already been read.
        if row_match.name_index > *name_index {
            return false;
        }
        let Some(sample) = MetricSample::parse(row_match.labels_and_value) else {
            return false;
        };
        match &dialect.rows[row_match.row].target {
            RowTarget::Number {
                source,
                aggregation,
                field,
            } => {
                let Some(value) = source.read(&sample) else {
                    return false;
                };
                let field = field(&mut self.load);
                // A name with a lower index replaces the value. Another line with the current name adds a
                // series to the value.
                let before = if row_match.name_index == *name_index {
                    *field
                } else {
                    None
                };
                *field = Some(aggregation.combine(before, value));
            }
            RowTarget::Adapters => {
                let timestamp = sample
                    .number()
                    .filter(|time| *time >= self.adapters_timestamp);
                let Some(timestamp) = timestamp else {
                    return false;
                };
                self.adapters_timestamp = timestamp;
                self.load.adapters = Some(LoraAdapters::read(&sample));
            }
        }
        *name_index = row_match.name_index;
        true
    }

    fn finish(self) -> EngineLoad {
        let mut load = self.load;
        load.server = self.engine_kind.or(self.prefix_engine_kind);
        if load.server == Some(EngineKind::Gateway) {
            load.waiting = load
                .waiting
                .map(|waiting| waiting + load.waiting_deferred.unwrap_or(0.0));
        }
        for dialect in &DIALECTS {
            for row in dialect.rows {
                if let RowTarget::Number { field, .. } = row.target {
                    let field = field(&mut load);
                    // The sum of several series can exceed the limit for single numbers.
                    *field = field.filter(|value| *value <= MAX_NUMBER);
                }
            }
        }
        for usage in [
            &mut load.kv_usage,
            &mut load.min_kv_usage,
            &mut load.cpu_cache_usage,
        ] {
            *usage = usage.filter(|usage| (0.0..=1.0).contains(usage));
        }
        load
    }
}
