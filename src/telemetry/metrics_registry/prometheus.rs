//! The Prometheus sink: the series of all metrics in the catalogue.
//!
//! Counters and histograms are updated when requests end. Gauges are read when the metrics page is
//! rendered.

use super::buckets::BucketOverrides;
use super::exemplar::Exemplar;
use super::exposition::{BucketLabels, ExpositionFormat, ExpositionWriter, bars};
use super::retired_backends::RetiredBackends;
use super::series::{LockedSeries, MetricFamily, SeriesLabels, SeriesPoint};
use crate::backend::LabelledModel;
use crate::telemetry::catalog;
use crate::telemetry::metric::{KnownLabelValues, MetricLabel, MetricSource, ScrapeResult};
use crate::telemetry::status::StatusSnapshot;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use tokenweir_core::metric_kind::MetricKind;
use tokenweir_core::observe::Sink;
use tokenweir_core::record::{ModelLabel, RequestRecord};
use tokenweir_core::slo::Objective;

/// The series of all metrics.
pub struct Prometheus {
    /// All metrics with the `le` labels of their buckets, sorted by name.
    families: Vec<(MetricFamily, BucketLabels)>,
    objectives: Vec<Objective>,
    /// Label values that have series before their first request.
    label_state: Mutex<KnownLabelState>,
    #[cfg(target_os = "linux")]
    process_collector: prometheus::process_collector::ProcessCollector,
}

/// The models, tenants and backends that have series.
struct KnownLabelState {
    known: KnownLabelValues,
    retired_backends: RetiredBackends,
    /// The models that are label values.
    labelled: HashSet<Arc<str>>,
    /// Whether series of models may exist that are no longer label values: a request for a removed
    /// model can end after the removal.
    has_forgotten_models: bool,
}

/// One value of a metric.
pub(in crate::telemetry) enum FamilyValue<'a> {
    /// Read from the current state, with the values of the row's labels.
    Current(&'a [&'a str], f64),
    /// Accumulated in a series.
    Recorded(&'a SeriesLabels, &'a SeriesPoint),
}

/// Initial capacity of the buffer of a metrics page: enough for a few models and backends.
const INITIAL_PAGE_CAPACITY_BYTES: usize = 1 << 17;

// === impl Prometheus ===

impl Prometheus {
    /// Creates empty series for every metric. Series of `known` label values exist from the start.
    /// `objectives` are evaluated for every request.
    pub fn new(
        known: KnownLabelValues,
        buckets: &BucketOverrides,
        objectives: Vec<Objective>,
    ) -> Self {
        let family = |row| {
            let family = MetricFamily::new(row, buckets.bounds_for(row));
            let bucket_labels = bars(&family.bounds);
            (family, bucket_labels)
        };
        let mut families: Vec<(MetricFamily, BucketLabels)> = catalog::rows().map(family).collect();
        families.sort_by_key(|(family, _)| family.row.name);
        let slos = objectives.iter().map(|objective| objective.name.clone()).collect();
        let known = KnownLabelValues { slos, ..known };
        for (family, _) in &families {
            family.seed(&known);
        }
        Self {
            families,
            objectives,
            label_state: Mutex::new(KnownLabelState {
                known,
                retired_backends: RetiredBackends::default(),
                labelled: HashSet::new(),
                has_forgotten_models: false,
            }),
            #[cfg(target_os = "linux")]
            process_collector: prometheus::process_collector::ProcessCollector::for_self(),
        }
    }

    /// Creates the series of new models, tenants and backends, and removes those of models that are
    /// no longer label values and of backends that were removed long ago.
    fn update_known_labels(
        &self,
        models: &[LabelledModel],
        tenants: &[String],
        backends: Vec<String>,
    ) {
        let mut label_state = self.label_state.lock().unwrap_or_else(PoisonError::into_inner);
        let KnownLabelState { known, retired_backends, labelled, has_forgotten_models } =
            &mut *label_state;
        let seeded = models.iter().filter(|model| model.is_seeded);
        let is_same =
            known.models.iter().map(String::as_str).eq(seeded.clone().map(|model| &*model.name))
                && known.tenants == tenants
                && known.backends == backends;
        if !is_same {
            retired_backends.on_change(&known.backends, &backends);
            known.models = seeded.map(|model| model.name.to_string()).collect();
            known.tenants = tenants.to_vec();
            known.backends = backends;
            for (family, _) in &self.families {
                family.seed(known);
            }
        }
        if retired_backends.has_forgotten() {
            let is_known = |name: &str| known.backends.iter().any(|known| known == name);
            for (family, _) in &self.families {
                family.retain(MetricLabel::BACKEND.name, |name| {
                    is_known(name) || retired_backends.has(name)
                });
            }
        }
        let now_labelled: HashSet<Arc<str>> =
            models.iter().map(|model| model.name.clone()).collect();
        *has_forgotten_models |= labelled.iter().any(|name| !now_labelled.contains(name));
        *labelled = now_labelled;
        if *has_forgotten_models {
            let is_label = |name: &str| name == ModelLabel::OTHER || labelled.contains(name);
            for (family, _) in &self.families {
                family.retain(MetricLabel::MODEL.name, is_label);
            }
        }
    }

    /// Counts one scrape of a backend's metrics.
    pub fn record_scrape(&self, scrape: &ScrapeResult<'_>) {
        for (family, _) in &self.families {
            if let MetricSource::Scrape(read) = family.row.read {
                let mut series = family.open();
                read(scrape, &mut |labels, value| series.record(labels, value, None));
            }
        }
    }

    /// The metrics page.
    pub fn page(&self, vitals: &StatusSnapshot, format: ExpositionFormat) -> String {
        let mut page = ExpositionWriter::new(format, INITIAL_PAGE_CAPACITY_BYTES);
        self.refresh_known_labels(vitals);
        for (family, bucket_labels) in &self.families {
            self.write_family(family, bucket_labels, vitals, &mut page);
        }
        self.process(&mut |name, help, kind, value| {
            page.family(name, help, kind);
            page.number(name, "", value);
        });
        page.end()
    }

    /// All metrics, with series for all labels known now.
    pub(in crate::telemetry) fn families(
        &self,
        vitals: &StatusSnapshot,
    ) -> impl Iterator<Item = &MetricFamily> {
        self.refresh_known_labels(vitals);
        self.families.iter().map(|(family, _)| family)
    }

    /// Calls `emit` with every value of a metric.
    pub(in crate::telemetry) fn values(
        &self,
        family: &MetricFamily,
        vitals: &StatusSnapshot,
        emit: &mut dyn FnMut(FamilyValue<'_>),
    ) {
        let emit_current = &mut |labels: &[&str], value| emit(FamilyValue::Current(labels, value));
        match family.row.read {
            MetricSource::Status(read) => read(vitals, emit_current),
            MetricSource::Objective(read) => {
                self.objectives.iter().for_each(|objective| read(objective, emit_current));
            }
            _ => {
                let mut emit_recorded = |labels: &SeriesLabels, point: &SeriesPoint| {
                    emit(FamilyValue::Recorded(labels, point));
                };
                family.points().iter().for_each(|(labels, point)| emit_recorded(labels, point));
            }
        }
    }

    /// Calls `emit` with name, help, kind and value of each metric of the process.
    #[cfg_attr(not(target_os = "linux"), expect(clippy::unused_self, reason = "only on Linux"))]
    pub(in crate::telemetry) fn process(&self, emit: &mut dyn FnMut(&str, &str, MetricKind, f64)) {
        #[cfg(target_os = "linux")]
        super::process_metrics::read(&self.process_collector, emit);
        #[cfg(not(target_os = "linux"))]
        let _ = emit;
    }

    /// Updates the series to the current models, tenants and backends.
    fn refresh_known_labels(&self, vitals: &StatusSnapshot) {
        let backends = vitals.backends.iter().map(|backend| backend.backend.clone()).collect();
        self.update_known_labels(&vitals.models, &vitals.tenants, backends);
    }

    fn write_family(
        &self,
        family: &MetricFamily,
        bucket_labels: &BucketLabels,
        vitals: &StatusSnapshot,
        page: &mut ExpositionWriter,
    ) {
        let row = family.row;
        // A metric without series does not appear on the page.
        let mut has_header = false;
        self.values(family, vitals, &mut |value| {
            if !std::mem::replace(&mut has_header, true) {
                page.family(row.name, row.help, row.kind);
            }
            match value {
                FamilyValue::Current(labels, value) => {
                    page.number(row.name, &family.text(labels), value);
                }
                FamilyValue::Recorded(labels, point) if point.counts.is_empty() => {
                    page.number(row.name, &labels.text, point.sum);
                }
                FamilyValue::Recorded(labels, point) => {
                    page.histogram(row.name, &labels.text, bucket_labels, point);
                }
            }
        });
    }
}

impl Sink for Prometheus {
    fn first_output(&self, record: &RequestRecord) {
        for (family, _) in &self.families {
            if let MetricSource::FirstOutput(read) = family.row.read {
                let mut series = family.open();
                read(record, &mut |labels, value| series.record(labels, value, None));
            }
        }
    }

    fn finished(&self, records: &[&RequestRecord]) {
        let with_exemplars = records.iter().map(|record| (*record, Exemplar::from_record(record)));
        self.record_finished(&with_exemplars.collect::<Vec<_>>());
    }
}

impl Prometheus {
    /// Adds the values of all records, metric by metric, so that each metric is locked and its
    /// series are loaded into the CPU cache once for all records.
    fn record_finished(&self, records: &[(&RequestRecord, Option<Exemplar>)]) {
        for (family, _) in &self.families {
            if !matches!(
                family.row.read,
                MetricSource::Status(_) | MetricSource::Scrape(_) | MetricSource::Objective(_)
            ) {
                let mut series = family.open();
                for (record, exemplar) in records {
                    self.record_finished_in(family.row.read, &mut series, record, *exemplar);
                }
            }
        }
    }

    fn record_finished_in(
        &self,
        read: MetricSource,
        series: &mut LockedSeries<'_>,
        record: &RequestRecord,
        exemplar: Option<Exemplar>,
    ) {
        let add = &mut |labels: &[&str], value| series.record(labels, value, exemplar);
        match (read, exemplar) {
            (MetricSource::Record(read), _) => read(record, add),
            (MetricSource::RecordPerObjective(read), _) => {
                self.objectives.iter().for_each(|objective| read(objective, record, add));
            }
            // The value was counted at the first output. The exemplar follows now, because the
            // trace is sampled only at the end of the request.
            (MetricSource::FirstOutput(read), Some(exemplar)) => {
                read(record, &mut |labels, value| series.show(labels, value, exemplar));
            }
            (MetricSource::RecordHistogram(read), _) => {
                let snapshot = read(record).filter(|snapshot| snapshot.count > 0);
                if let (Some(snapshot), Some(backend)) = (snapshot, record.backend()) {
                    let labels = [record.model.as_str(), backend.as_str()];
                    series.absorb(&labels, &snapshot, exemplar);
                }
            }
            _ => {}
        }
    }
}
