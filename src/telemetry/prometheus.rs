//! The Prometheus sink: the catalogue's rows as series. Requests feed counters and histograms when
//! they end; gauges are read when somebody scrapes.

use super::buckets::Buckets;
use super::catalog;
use super::exemplar::Exemplar;
use super::exposition::{Bars, Format, Page, bars};
use super::metric::{Kind, Known, Label, Read, Scrape};
use super::parted::Parted;
use super::series::{Family, Labels, Open, Point};
use super::vitals::Vitals;
use crate::backend::LabelledModel;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use tokenweir_core::observe::Sink;
use tokenweir_core::record::{ModelLabel, RequestRecord};
use tokenweir_core::slo::Objective;

/// All series.
pub struct Prometheus {
    /// By name.
    families: Vec<(Family, Bars)>,
    objectives: Vec<Objective>,
    /// What has its series from the start.
    met: Mutex<Met>,
    #[cfg(target_os = "linux")]
    process: prometheus::process_collector::ProcessCollector,
}

/// The models and replicas that were met.
struct Met {
    known: Known,
    parted: Parted,
    /// The models that are label values.
    labelled: HashSet<Arc<str>>,
    /// Whether there may be series of models that are none any more: of one that is gone, a request
    /// may still end.
    has_forgotten_models: bool,
}

/// One value of a family.
pub(super) enum Value<'a> {
    /// Read just now, under these values of the row's labels.
    Live(&'a [&'a str], f64),
    /// What a series has come to.
    Kept(&'a Labels, &'a Point),
}

/// Room for a page of a few models and replicas.
const PAGE: usize = 1 << 17;

// === impl Prometheus ===

impl Prometheus {
    /// Series for every row, empty; those of `known` labels are there from the start. Requests are
    /// judged by these objectives.
    pub fn new(known: Known, buckets: &Buckets, objectives: Vec<Objective>) -> Self {
        let family = |row| {
            let family = Family::new(row, buckets.of(row));
            let bars = bars(&family.bounds);
            (family, bars)
        };
        let mut families: Vec<(Family, Bars)> = catalog::rows().map(family).collect();
        families.sort_by_key(|(family, _)| family.row.name);
        let slos = objectives.iter().map(|objective| objective.name.clone()).collect();
        let known = Known { slos, ..known };
        for (family, _) in &families {
            family.seed(&known);
        }
        Self {
            families,
            objectives,
            met: Mutex::new(Met {
                known,
                parted: Parted::default(),
                labelled: HashSet::new(),
                has_forgotten_models: false,
            }),
            #[cfg(target_os = "linux")]
            process: prometheus::process_collector::ProcessCollector::for_self(),
        }
    }

    /// Makes the series of models, tenants and replicas that have become known, and ends those of
    /// models and replicas that went away long ago.
    fn learn(&self, models: &[LabelledModel], tenants: &[String], backends: Vec<String>) {
        let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        let Met { known, parted, labelled, has_forgotten_models } = &mut *met;
        let seeded = models.iter().filter(|model| model.is_seeded);
        let is_same =
            known.models.iter().map(String::as_str).eq(seeded.clone().map(|it| &*it.name))
                && known.tenants == tenants
                && known.backends == backends;
        if !is_same {
            parted.on_change(&known.backends, &backends);
            known.models = seeded.map(|model| model.name.to_string()).collect();
            known.tenants = tenants.to_vec();
            known.backends = backends;
            for (family, _) in &self.families {
                family.seed(known);
            }
        }
        if parted.has_forgotten() {
            let is_known = |name: &str| known.backends.iter().any(|known| known == name);
            for (family, _) in &self.families {
                family.retain(Label::Backend, |name| is_known(name) || parted.has(name));
            }
        }
        let now_labelled: HashSet<Arc<str>> = models.iter().map(|it| it.name.clone()).collect();
        *has_forgotten_models |= labelled.iter().any(|name| !now_labelled.contains(name));
        *labelled = now_labelled;
        if *has_forgotten_models {
            let is_label = |name: &str| name == ModelLabel::OTHER || labelled.contains(name);
            for (family, _) in &self.families {
                family.retain(Label::Model, is_label);
            }
        }
    }

    /// Counts one look at a replica's metrics.
    pub fn scraped(&self, scrape: &Scrape<'_>) {
        for (family, _) in &self.families {
            if let Read::Scrape(read) = family.row.read {
                let mut series = family.open();
                read(scrape, &mut |labels, value| series.take(labels, value, None));
            }
        }
    }

    /// The page.
    pub fn page(&self, vitals: &Vitals, format: Format) -> String {
        let mut page = Page::new(format, PAGE);
        self.meet(vitals);
        for (family, bars) in &self.families {
            self.write(family, bars, vitals, &mut page);
        }
        self.process(&mut |name, help, kind, value| {
            page.family(name, help, kind);
            page.number(name, "", value);
        });
        page.end()
    }

    /// All families, with the series of everything that is there now.
    pub(super) fn families(&self, vitals: &Vitals) -> impl Iterator<Item = &Family> {
        self.meet(vitals);
        self.families.iter().map(|(family, _)| family)
    }

    /// Tells every value of a family.
    pub(super) fn values(&self, family: &Family, vitals: &Vitals, tell: &mut dyn FnMut(Value<'_>)) {
        let live = &mut |labels: &[&str], value| tell(Value::Live(labels, value));
        match family.row.read {
            Read::Vitals(read) => read(vitals, live),
            Read::Promise(read) => self.objectives.iter().for_each(|it| read(it, live)),
            _ => {
                let mut kept = |labels: &Labels, point: &Point| tell(Value::Kept(labels, point));
                family.points().iter().for_each(|(labels, point)| kept(labels, point));
            }
        }
    }

    /// Tells name, help, kind and value of the families of the process itself.
    #[cfg_attr(not(target_os = "linux"), expect(clippy::unused_self, reason = "it is Linux's"))]
    pub(super) fn process(&self, tell: &mut dyn FnMut(&str, &str, Kind, f64)) {
        #[cfg(target_os = "linux")]
        super::process::read(&self.process, tell);
        #[cfg(not(target_os = "linux"))]
        let _ = tell;
    }

    /// Makes the series of the models, tenants and replicas that are there now.
    fn meet(&self, vitals: &Vitals) {
        let backends = vitals.backends.iter().map(|backend| backend.backend.clone()).collect();
        self.learn(&vitals.models, &vitals.tenants, backends);
    }

    fn write(&self, family: &Family, bars: &Bars, vitals: &Vitals, page: &mut Page) {
        let row = family.row;
        // A family without a series has no place on a page.
        let mut is_begun = false;
        self.values(family, vitals, &mut |value| {
            if !std::mem::replace(&mut is_begun, true) {
                page.family(row.name, row.help, row.kind);
            }
            match value {
                Value::Live(labels, value) => page.number(row.name, &family.text(labels), value),
                Value::Kept(labels, point) if point.counts.is_empty() => {
                    page.number(row.name, &labels.text, point.sum);
                }
                Value::Kept(labels, point) => page.histogram(row.name, &labels.text, bars, point),
            }
        });
    }
}

impl Sink for Prometheus {
    fn first_output(&self, record: &RequestRecord) {
        for (family, _) in &self.families {
            if let Read::FirstOutput(read) = family.row.read {
                let mut series = family.open();
                read(record, &mut |labels, value| series.take(labels, value, None));
            }
        }
    }

    fn finished(&self, record: &RequestRecord) {
        self.finished_each(&[(record, Exemplar::of(record))]);
    }

    fn finished_all(&self, records: &[Box<RequestRecord>]) {
        let each = records.iter().map(|record| (&**record, Exemplar::of(record)));
        self.finished_each(&each.collect::<Vec<_>>());
    }
}

impl Prometheus {
    /// Family by family, so that its series are fetched and held once for all records.
    fn finished_each(&self, records: &[(&RequestRecord, Option<Exemplar>)]) {
        for (family, _) in &self.families {
            if !matches!(family.row.read, Read::Vitals(_) | Read::Scrape(_) | Read::Promise(_)) {
                let mut series = family.open();
                for (record, exemplar) in records {
                    self.finished_in(family.row.read, &mut series, record, *exemplar);
                }
            }
        }
    }

    fn finished_in(
        &self,
        read: Read,
        series: &mut Open<'_>,
        record: &RequestRecord,
        exemplar: Option<Exemplar>,
    ) {
        let take = &mut |labels: &[&str], value| series.take(labels, value, exemplar);
        match (read, exemplar) {
            (Read::Record(read), _) => read(record, take),
            (Read::Judged(read), _) => {
                self.objectives.iter().for_each(|it| read(it, record, take));
            }
            // Taken when it came; only now is it known whether its trace is kept.
            (Read::FirstOutput(read), Some(exemplar)) => {
                read(record, &mut |labels, value| series.show(labels, value, exemplar));
            }
            (Read::Spread(read), _) => {
                let parts = read(record).filter(|parts| parts.count > 0);
                if let (Some(parts), Some(backend)) = (parts, record.backend()) {
                    let labels = [record.model.as_str(), backend.as_str()];
                    series.absorb(&labels, &parts, exemplar);
                }
            }
            _ => {}
        }
    }
}
