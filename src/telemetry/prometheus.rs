//! The Prometheus sink: the catalogue's rows as series. Requests feed counters and histograms when
//! they end; gauges are read when somebody scrapes.

use super::catalog;
use super::metric::{Emit, Kind, Known, Label, Read, Row, Scrape};
use super::vitals::Vitals;
use crate::observe::Sink;
use crate::record::RequestRecord;
use crate::spread::{MAX_BOUNDS, Parts};
use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType,
};
use prometheus::{CounterVec, Encoder, HistogramOpts, HistogramVec, Opts, Registry, TextEncoder};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// All series.
pub struct Prometheus {
    registry: Registry,
    rows: Vec<(&'static Row, Series)>,
    known: Mutex<Known>,
    tiers: Vec<String>,
}

enum Series {
    Counter(CounterVec),
    Histogram(HistogramVec),
    Spread(SpreadSeries),
    /// Read from [`Vitals`] at the scrape.
    Live,
}

/// Histograms that take all values of a request at once, by model and backend.
#[derive(Default)]
struct SpreadSeries(Mutex<BTreeMap<[String; 2], Totals>>);

#[derive(Clone, Default)]
struct Totals {
    counts: [u64; MAX_BOUNDS + 1],
    count: u64,
    sum: f64,
}

// === impl Prometheus ===

impl Prometheus {
    /// Empty series for every row; those of `known` labels are there from the start.
    pub fn new(known: Known) -> prometheus::Result<Self> {
        let registry = Registry::new();
        let mut rows = Vec::new();
        for row in catalog::rows() {
            rows.push((row, Series::of(row, &registry)?));
        }
        #[cfg(target_os = "linux")]
        registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        let tiers = known.tiers.clone();
        let this = Self { registry, rows, known: Mutex::new(Known::default()), tiers };
        this.learn(known);
        Ok(this)
    }

    /// Makes the series of labels that have become known.
    pub fn learn(&self, known: Known) {
        let mut before = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if *before == known {
            return;
        }
        for (row, series) in &self.rows {
            for seed in row.seeds(&known) {
                series.seed(&seed);
            }
        }
        *before = known;
    }

    /// Counts one look at a replica's metrics.
    pub fn scraped(&self, scrape: &Scrape<'_>) {
        for (row, series) in &self.rows {
            if let Read::Scrape(read) = row.read {
                read(scrape, &mut |labels, value| series.take(labels, value));
            }
        }
    }

    /// The page, in the Prometheus text format 0.0.4.
    pub fn page(&self, vitals: &Vitals) -> prometheus::Result<Vec<u8>> {
        self.learn(Known {
            models: vitals.models.clone(),
            backends: vitals.backends.iter().map(|backend| backend.backend.clone()).collect(),
            tiers: self.tiers.clone(),
        });
        let mut families = self.registry.gather();
        for (row, series) in &self.rows {
            match (series, &row.read) {
                (Series::Live, Read::Vitals(read)) => families.push(live(row, *read, vitals)),
                (Series::Spread(spread), _) => families.push(spread.family(row)),
                _ => {}
            }
        }
        families.retain(|family| !family.get_metric().is_empty());
        families.sort_by(|a, b| a.name().cmp(b.name()));
        let mut page = Vec::with_capacity(1 << 16);
        TextEncoder::new().encode(&families, &mut page)?;
        Ok(page)
    }
}

impl Sink for Prometheus {
    fn first_output(&self, record: &RequestRecord) {
        for (row, series) in &self.rows {
            if let Read::FirstOutput(read) = row.read {
                read(record, &mut |labels, value| series.take(labels, value));
            }
        }
    }

    fn finished(&self, record: &RequestRecord) {
        for (row, series) in &self.rows {
            match (&row.read, series) {
                (Read::Record(read), series) => {
                    read(record, &mut |labels, value| series.take(labels, value));
                }
                (Read::Spread(read), Series::Spread(totals)) => {
                    let parts = read(record).filter(|parts| parts.count > 0);
                    if let (Some(parts), Some(backend)) = (parts, record.backend()) {
                        totals.add([record.model.as_str(), backend.as_str()], &parts);
                    }
                }
                _ => {}
            }
        }
    }
}

// === impl Series ===

impl Series {
    fn of(row: &Row, registry: &Registry) -> prometheus::Result<Self> {
        let labels: Vec<&str> = row.labels.iter().map(|label| label.name()).collect();
        Ok(match (&row.read, row.kind) {
            (Read::Vitals(_), _) | (_, Kind::Gauge) => Self::Live,
            (Read::Spread(_), _) => Self::Spread(SpreadSeries::default()),
            (_, Kind::Counter) => {
                let counter = CounterVec::new(Opts::new(row.name, row.help), &labels)?;
                registry.register(Box::new(counter.clone()))?;
                Self::Counter(counter)
            }
            (_, Kind::Histogram(bounds)) => {
                let opts = HistogramOpts::new(row.name, row.help).buckets(bounds.to_vec());
                let histogram = HistogramVec::new(opts, &labels)?;
                registry.register(Box::new(histogram.clone()))?;
                Self::Histogram(histogram)
            }
        })
    }

    fn take(&self, labels: &[&str], value: f64) {
        match self {
            Self::Counter(counter) => {
                if let Ok(counter) = counter.get_metric_with_label_values(labels) {
                    counter.inc_by(value);
                }
            }
            Self::Histogram(histogram) => {
                if let Ok(histogram) = histogram.get_metric_with_label_values(labels) {
                    histogram.observe(value);
                }
            }
            Self::Spread(_) | Self::Live => {}
        }
    }

    fn seed(&self, labels: &[String]) {
        match self {
            Self::Counter(counter) => drop(counter.get_metric_with_label_values(labels)),
            Self::Histogram(histogram) => drop(histogram.get_metric_with_label_values(labels)),
            Self::Spread(totals) => {
                if let [model, backend] = labels {
                    totals.add([model, backend], &Parts::default());
                }
            }
            Self::Live => {}
        }
    }
}

// === impl SpreadSeries ===

impl SpreadSeries {
    fn add(&self, labels: [&str; 2], parts: &Parts<'_>) {
        let mut series = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let totals = series.entry(labels.map(Into::into)).or_default();
        for (total, count) in totals.counts.iter_mut().zip(parts.counts) {
            *total += u64::from(*count);
        }
        totals.count += u64::from(parts.count);
        totals.sum += parts.sum;
    }

    fn family(&self, row: &Row) -> MetricFamily {
        let series = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let metrics = series.iter().map(|(labels, totals)| {
            let mut metric = Metric::from_label(pairs(row, labels));
            metric.set_histogram(totals.histogram(row));
            metric
        });
        family(row, MetricType::HISTOGRAM, metrics.collect())
    }
}

impl Totals {
    fn histogram(&self, row: &Row) -> Histogram {
        let Kind::Histogram(bounds) = row.kind else { return Histogram::default() };
        let mut cumulative = 0;
        let buckets = bounds.iter().zip(self.counts).map(|(bound, count)| {
            cumulative += count;
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(*bound);
            bucket.set_cumulative_count(cumulative);
            bucket
        });
        let mut histogram = Histogram::default();
        histogram.set_bucket(buckets.collect());
        histogram.set_sample_count(self.count);
        histogram.set_sample_sum(self.sum);
        histogram
    }
}

// === building families ===

fn live(row: &Row, read: fn(&Vitals, Emit<'_>), vitals: &Vitals) -> MetricFamily {
    let mut metrics = Vec::new();
    read(vitals, &mut |labels, value| {
        let labels: Vec<String> = labels.iter().map(|label| (*label).to_owned()).collect();
        let mut metric = Metric::from_label(pairs(row, &labels));
        if row.kind == Kind::Counter {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        metrics.push(metric);
    });
    let kind = if row.kind == Kind::Counter { MetricType::COUNTER } else { MetricType::GAUGE };
    family(row, kind, metrics)
}

fn pairs(row: &Row, values: &[String]) -> Vec<LabelPair> {
    let pair = |(label, value): (&Label, &String)| {
        let mut pair = LabelPair::default();
        pair.set_name(label.name().to_owned());
        pair.set_value(value.clone());
        pair
    };
    row.labels.iter().zip(values).map(pair).collect()
}

fn family(row: &Row, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(row.name.to_owned());
    family.set_help(row.help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}
