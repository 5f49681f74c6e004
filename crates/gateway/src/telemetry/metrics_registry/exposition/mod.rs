//! Writes the metrics page in the formats that Prometheus reads: the text format 0.0.4, OpenMetrics 1.0 (with
//! exemplars), and Protocol Buffers (with native histograms).

mod protobuf;

use super::exemplar::Exemplar;
use super::prometheus::Prometheus;
use super::series::{SeriesPoint, escape};
use crate::status::StatusSnapshot;
use std::fmt::Write;
use tokenweir_protocol::metric_kind::MetricKind;

/// The name of the Protocol Buffers message, as the media type of the page contains it.
const MESSAGE_NAME: &str = "io.prometheus.client.MetricFamily";

/// The exposition format of the metrics page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd)]
pub enum ExpositionFormat {
    /// The text format 0.0.4, which every Prometheus reads.
    #[default]
    Text,
    /// OpenMetrics 1.0, with exemplars.
    OpenMetrics,
    /// Messages `io.prometheus.client.MetricFamily`, each preceded by its length.
    Protobuf,
}

/// Writes a metrics page in one of the two text formats.
struct ExpositionWriter {
    text: String,
    format: ExpositionFormat,
}

/// Memory that is allocated for a metrics page at first. The pages of small fleets fit into it.
const INITIAL_PAGE_CAPACITY_BYTES: usize = 1 << 17;

impl Prometheus {
    /// Renders the metrics page: all families in the order of their names, and the metrics of the process.
    pub fn page(&self, status: &StatusSnapshot, format: ExpositionFormat) -> Vec<u8> {
        self.update_known_labels(status);
        match format {
            ExpositionFormat::Protobuf => self.protobuf_page(status),
            _ => self.text_page(status, format).into_bytes(),
        }
    }

    fn text_page(&self, status: &StatusSnapshot, format: ExpositionFormat) -> String {
        let mut page = ExpositionWriter::new(format);
        for family in &self.families {
            let row = family.row;
            // The page lists no metric without series.
            let mut has_header = false;
            family.values(status, &mut |labels, point| {
                if !std::mem::replace(&mut has_header, true) {
                    page.write_header(row.name, row.help, row.kind);
                }
                let labels = family.render_labels(labels);
                if point.counts.is_empty() {
                    page.write_number(row.name, &labels, point.sum);
                } else {
                    page.write_histogram(row.name, &labels, &family.bucket_labels, point);
                }
            });
        }
        self.process_metrics(&mut |name, help, kind, value| {
            page.write_header(name, help, kind);
            page.write_number(name, "", value);
        });
        page.finish()
    }
}

impl ExpositionFormat {
    /// Returns the format that an `Accept` header requests. Among several formats, the one with the largest `q`
    /// wins. At equal `q`, Protocol Buffers precede OpenMetrics, and OpenMetrics precedes the text format.
    /// `text/*` and `*/*` count for the text format, which is also the default. `is_native`: Protocol Buffers,
    /// with native histograms, are available.
    pub fn accepted(accept: &str, is_native: bool) -> Self {
        let mut best_q = 0.0;
        let mut best = Self::Text;
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default().to_ascii_lowercase();
            let mut version = None;
            let mut q = 1.0;
            let mut message = None;
            let mut encoding = None;
            for (name, value) in parts.filter_map(|part| part.split_once('=')) {
                let value = value.trim();
                let unquoted = Some(value.trim_matches('"'));
                match name.trim().to_ascii_lowercase().as_str() {
                    "version" => version = unquoted,
                    "proto" => message = unquoted,
                    "encoding" => encoding = unquoted,
                    "q" => q = value.parse().unwrap_or(0.0),
                    _ => {}
                }
            }
            let format = match (media_type.as_str(), version) {
                ("application/openmetrics-text", None | Some("1.0.0")) => Self::OpenMetrics,
                ("application/vnd.google.protobuf", _)
                    if is_native
                        && message == Some(MESSAGE_NAME)
                        && encoding == Some("delimited") =>
                {
                    Self::Protobuf
                }
                ("text/plain", None | Some("0.0.4")) | ("text/*" | "*/*", _) => Self::Text,
                _ => continue,
            };
            if q > best_q || q > 0.0 && q >= best_q && format > best {
                best_q = q;
                best = format;
            }
        }
        best
    }

    /// The media type of this format, with its version.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; \
                 encoding=delimited"
            }
        }
    }
}

impl ExpositionWriter {
    fn new(format: ExpositionFormat) -> Self {
        Self {
            text: String::with_capacity(INITIAL_PAGE_CAPACITY_BYTES),
            format,
        }
    }

    fn write_header(&mut self, name: &str, help: &str, kind: MetricKind) {
        let is_open_metrics = self.format == ExpositionFormat::OpenMetrics;
        // In OpenMetrics the suffix `_total` belongs to the sample name, not to the metric name.
        let metric_name = if is_open_metrics {
            name.strip_suffix("_total").unwrap_or(name)
        } else {
            name
        };
        let _ = write!(self.text, "# HELP {metric_name} ");
        escape(help, is_open_metrics, &mut self.text);
        let _ = writeln!(self.text, "\n# TYPE {metric_name} {}", kind.as_str());
    }

    /// Writes one sample of a counter or a gauge.
    fn write_number(&mut self, name: &str, labels: &str, value: f64) {
        self.write_sample_name(name, "", labels);
        self.write_value(value);
        self.text.push('\n');
    }

    /// Writes the samples of one series of a histogram.
    fn write_histogram(
        &mut self,
        name: &str,
        labels: &str,
        bucket_labels: &[String],
        point: &SeriesPoint,
    ) {
        let comma = if labels.is_empty() { "" } else { "," };
        let mut cumulative = 0;
        for (bucket, (bound, count)) in bucket_labels.iter().zip(&point.counts).enumerate() {
            cumulative += count;
            let _ = write!(
                self.text,
                "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {cumulative}"
            );
            let exemplar = point.exemplars().iter().find(|(index, _)| *index == bucket);
            if let Some((_, exemplar)) = exemplar
                && self.format == ExpositionFormat::OpenMetrics
            {
                self.write_exemplar(exemplar);
            }
            self.text.push('\n');
        }
        self.write_sample_name(name, "_sum", labels);
        self.write_value(point.sum);
        self.text.push('\n');
        self.write_sample_name(name, "_count", labels);
        let _ = writeln!(self.text, "{cumulative}");
    }

    /// Completes the page and returns its text.
    fn finish(mut self) -> String {
        if self.format == ExpositionFormat::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    fn write_sample_name(&mut self, name: &str, suffix: &str, labels: &str) {
        let _ = match labels {
            "" => write!(self.text, "{name}{suffix} "),
            _ => write!(self.text, "{name}{suffix}{{{labels}}} "),
        };
    }

    fn write_value(&mut self, value: f64) {
        let _ = match value {
            f64::INFINITY => write!(self.text, "+Inf"),
            f64::NEG_INFINITY => write!(self.text, "-Inf"),
            _ => write!(self.text, "{value}"),
        };
    }

    fn write_exemplar(&mut self, exemplar: &Exemplar) {
        let Exemplar {
            trace_id,
            span_id,
            value,
            ended_at,
        } = exemplar;
        let _ = write!(
            self.text,
            " # {{trace_id=\"{trace_id:032x}\",span_id=\"{span_id:016x}\"}} {value} {}.{:03}",
            ended_at.as_secs(),
            ended_at.subsec_millis()
        );
    }
}

#[cfg(test)]
mod tests;
