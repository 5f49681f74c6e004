//! The Prometheus sink: the series of all metrics.
//!
//! The counters and histograms of requests are updated when a request ends, or at its first output. Most
//! other values are read from the state of the gateway when the metrics page is rendered.

use super::buckets::BucketOverrides;
use super::exemplar::Exemplar;
use super::level::{MetricDetail, MetricsLevel};
use super::retired_backends::RetiredBackends;
use super::series::{MetricFamily, SeriesWriter};
use crate::metric::{
    BACKEND, KnownLabelValues, MODEL, MetricDescriptor, MetricSource, OBJECTIVE_RATIO_METRIC,
};
use crate::status::StatusSnapshot;
use crate::telemetry::catalog;
use crate::telemetry::otel::Semconv;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use tokenweir_protocol::metric_kind::MetricKind;
use tokenweir_protocol::mutex::lock;
use tokenweir_request::observe::Sink;
use tokenweir_request::record::{ModelLabel, RequestRecord};
use tokenweir_request::slo::Objective;

/// The sink that holds the series of all metrics and renders the metrics page.
pub struct Prometheus {
    /// The series of each metric, sorted by the name of the metric.
    pub(super) families: Vec<MetricFamily>,
    /// Positions in `families` of the metrics whose values come from the records of requests.
    record_families: Vec<usize>,
    objectives: Vec<Objective>,
    /// Whether the metrics page is also available with native histograms.
    pub(in crate::telemetry) is_native: bool,
    /// The models, tenants and backends that have series. Each read of the metrics page updates them.
    label_state: Mutex<KnownLabelState>,
    #[cfg(target_os = "linux")]
    process_collector: prometheus::process_collector::ProcessCollector,
}

/// Settings that decide which metrics exist and which series they have.
pub struct MetricsSettings {
    /// The rows of the core and of all options.
    pub rows: Vec<&'static MetricDescriptor>,
    /// How many series the metrics have.
    pub level: MetricsLevel,
    /// The version of the GenAI conventions that metric names follow.
    pub semconv: Semconv,
    /// The tiers of the configuration. Their series exist from the start.
    pub tiers: Vec<String>,
    /// The bounds of histograms that differ from the defaults.
    pub buckets: BucketOverrides,
    /// The objectives that are evaluated for every request.
    pub objectives: Vec<Objective>,
}

/// The models, tenants and backends that have series, as of the last read of the metrics page.
#[derive(Default)]
struct KnownLabelState {
    /// Label values that have series before their first request.
    known: KnownLabelValues,
    retired_backends: RetiredBackends,
    labelled_models: HashSet<Arc<str>>,
    /// Whether a model ever ceased to be a label value. Such a model may still have series, because one of its
    /// requests can end after its removal.
    has_removed_models: bool,
}

impl Prometheus {
    /// Creates the sink with the metrics of the core, the level `full` and no tiers.
    pub fn new(buckets: BucketOverrides, objectives: Vec<Objective>) -> Self {
        Self::with_settings(MetricsSettings {
            rows: catalog::rows().collect(),
            level: MetricsLevel::Full,
            semconv: Semconv::default(),
            tiers: Vec::new(),
            buckets,
            objectives,
        })
    }

    /// Creates the families of all metrics and the series that exist from the start.
    pub fn with_settings(settings: MetricsSettings) -> Self {
        let MetricsSettings {
            rows,
            level,
            semconv,
            tiers,
            buckets,
            objectives,
        } = settings;
        let build_family = |row: &'static MetricDescriptor| {
            let folded_label = match level.detail(row, semconv) {
                MetricDetail::Omitted => return None,
                MetricDetail::WithoutBackend => Some(BACKEND.name),
                MetricDetail::Complete => None,
            };
            Some(MetricFamily::new(row, buckets.bounds_of(row), folded_label))
        };
        let mut families: Vec<MetricFamily> = rows.into_iter().filter_map(build_family).collect();
        families.sort_by_key(|family| family.row.name);
        let slos = objectives
            .iter()
            .map(|objective| objective.name.clone())
            .collect();
        let known = KnownLabelValues {
            tiers,
            slos,
            ..KnownLabelValues::default()
        };
        for family in &families {
            family.seed(&known);
        }
        let reads_record = |position: &usize| families[*position].row.read.reads_record();
        let record_families = (0..families.len()).filter(reads_record).collect();
        let metrics = Self {
            families,
            record_families,
            objectives,
            is_native: buckets.is_native,
            label_state: Mutex::new(KnownLabelState {
                known,
                ..KnownLabelState::default()
            }),
            #[cfg(target_os = "linux")]
            process_collector: prometheus::process_collector::ProcessCollector::for_self(),
        };
        for Objective {
            name, definition, ..
        } in &metrics.objectives
        {
            metrics.record(OBJECTIVE_RATIO_METRIC, &[name], definition.target);
        }
        metrics
    }

    /// Creates the series of new models, tenants and backends. Removes the series of former label values, and
    /// of backends that are neither registered nor recently removed.
    pub(super) fn update_known_labels(&self, status: &StatusSnapshot) {
        let models = &status.models;
        let seeded = models.iter().filter(|model| model.is_seeded);
        let mut label_state = lock(&self.label_state);
        let KnownLabelState {
            known,
            retired_backends,
            labelled_models,
            has_removed_models,
        } = &mut *label_state;
        let current = KnownLabelValues {
            models: seeded.map(|model| model.name.to_string()).collect(),
            tenants: status.tenants.clone(),
            backends: status
                .backends
                .iter()
                .map(|backend| backend.backend.clone())
                .collect(),
            ..known.clone()
        };
        if current != *known {
            retired_backends.update(&known.backends, &current.backends);
            *known = current;
            for family in &self.families {
                family.seed(known);
            }
        }
        if retired_backends.has_discarded {
            let is_known = |name: &str| known.backends.iter().any(|known| known == name);
            for family in &self.families {
                family.retain(BACKEND.name, |name| {
                    is_known(name) || retired_backends.contains(name)
                });
            }
        }
        let current_models: HashSet<Arc<str>> =
            models.iter().map(|model| model.name.clone()).collect();
        *has_removed_models |= labelled_models
            .iter()
            .any(|name| !current_models.contains(name));
        *labelled_models = current_models;
        if *has_removed_models {
            let is_label = |name: &str| name == ModelLabel::OTHER || labelled_models.contains(name);
            for family in &self.families {
                family.retain(MODEL.name, is_label);
            }
        }
    }

    /// Adds a value to the series of a metric with these label values. The source of the metric must be
    /// [`MetricSource::Recorded`].
    pub fn record(&self, metric: &str, labels: &[&str], value: f64) {
        let position = self
            .families
            .binary_search_by_key(&metric, |family| family.row.name);
        // The list lacks metrics that the level omits.
        if let Some(family) = position
            .ok()
            .and_then(|position| self.families.get(position))
        {
            family.writer().record(labels, value, None);
        }
    }

    /// Calls `emit` with the name, the help text, the kind and the value of each `process_*`
    /// metric. Such metrics exist on Linux only.
    #[cfg_attr(
        not(target_os = "linux"),
        expect(clippy::unused_self, reason = "only on Linux")
    )]
    pub(super) fn process_metrics(&self, emit: &mut dyn FnMut(&str, &str, MetricKind, f64)) {
        #[cfg(target_os = "linux")]
        super::process_metrics::read(&self.process_collector, emit);
        #[cfg(not(target_os = "linux"))]
        let _ = emit;
    }

    /// Adds the values of one record to the series of one metric, whose row is `row`.
    fn record_finished_in(
        &self,
        row: &MetricDescriptor,
        series: &mut SeriesWriter<'_>,
        record: &RequestRecord,
        exemplar: Option<&Exemplar>,
    ) {
        let add = &mut |labels: &[&str], value| series.record(labels, value, exemplar.copied());
        match (row.read, exemplar) {
            (MetricSource::Record(read), _) => read(record, add),
            (MetricSource::RecordValue(read), _) => {
                if let Some(value) = read(record) {
                    row.read_labels(record, |labels| add(labels, value));
                }
            }
            (MetricSource::RecordEvent(read), _) => {
                if let Some(label) = read(record) {
                    add(&[label], 1.0);
                }
            }
            (MetricSource::RecordWithObjectives(read), _) => {
                read(&self.objectives, record, add);
            }
            // The value was counted at the first output. The exemplar follows at the end of the request, when
            // it is known whether the trace is sampled.
            (MetricSource::FirstOutput(read), Some(exemplar)) => {
                if let Some(value) = read(record) {
                    row.read_labels(record, |labels| {
                        series.attach_exemplar(labels, value, *exemplar);
                    });
                }
            }
            (MetricSource::RecordHistogram(read), _) => {
                let snapshot = read(record);
                if snapshot.count > 0 {
                    row.read_labels(record, |labels| {
                        series.record_histogram(labels, &snapshot, exemplar.copied());
                    });
                }
            }
            _ => {}
        }
    }
}

impl Sink for Prometheus {
    fn first_output(&self, record: &RequestRecord) {
        for position in &self.record_families {
            let family = &self.families[*position];
            if let MetricSource::FirstOutput(read) = family.row.read
                && let Some(value) = read(record)
            {
                let mut series = family.writer();
                family
                    .row
                    .read_labels(record, |labels| series.record(labels, value, None));
            }
        }
    }

    /// Adds the values of all records, metric by metric. So each metric is locked once for all records, and its
    /// series are loaded into the CPU cache once.
    fn finished(&self, records: &[&RequestRecord]) {
        let exemplars: Vec<_> = records.iter().map(|it| Exemplar::from_record(it)).collect();
        for position in &self.record_families {
            let family = &self.families[*position];
            let mut series = family.writer();
            for (record, exemplar) in records.iter().zip(&exemplars) {
                self.record_finished_in(family.row, &mut series, record, exemplar.as_ref());
            }
        }
    }
}
