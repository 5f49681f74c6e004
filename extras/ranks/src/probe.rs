//! Finds out, with test requests (probes), which value of the header `X-data-parallel-rank` leads to
//! which data-parallel rank of a backend.

use crate::facet::RankFacet;
use crate::numbering;
use crate::rank_load::RankLoad;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_engine::dialect::EngineLoad;
use tokenweir_gateway::backend::facets::{PartialTarget, TargetPart};
use tokenweir_gateway::backend::health_checker::{CheckStep, HealthChecker, StepTime};
use tokenweir_gateway::backend::{Backend, BackendDriver};
use tokenweir_net::page_fetcher::PagePost;
use tokenweir_protocol::clock;
use tokenweir_routing::{LoadEstimator, LoadReport, LocalLoad, mix};

/// The header that names the data-parallel rank of a request to vLLM.
const X_DATA_PARALLEL_RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");
/// The field of the request that a backend names when it refuses a rank.
const REFUSED_FIELD: &[u8] = b"data_parallel_rank";
/// Mean time until the next search if the probes of a search did not show which rank got them.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum number of times that the metrics page is read after a probe, until it shows which rank got
/// the probe.
const MAX_PAGES: u32 = 20;
/// Time between two reads of the metrics page after a probe.
const PAGE_INTERVAL: Duration = Duration::from_millis(50);

/// Why a search for the header values of the ranks has no result.
enum Failure {
    /// The backend answered a probe with this status.
    Refused(StatusCode),
    /// The probes do not show which rank got them, or the backend did not answer.
    Unclear,
    /// The backend ignores the rank in `X-data-parallel-rank`.
    Ignored,
}

/// Finds the data-parallel ranks of all backends.
#[derive(Debug, Default)]
pub struct RankProbes;

/// The data-parallel ranks of one backend, as its health checker finds them.
#[derive(Default)]
struct RankStep {
    /// Whether the loads of the ranks are read from the metrics page.
    is_read: bool,
    /// The ranks that were targets of routing when the scrape began.
    targets: Option<Arc<Vec<PartialTarget>>>,
    /// The load that this gateway put on each of `targets` at that time.
    local_loads: Vec<LocalLoad>,
    /// The loads on the last page, in the order of the numbers of the ranks. Empty: the backend has one rank,
    /// or the loads of ranks are not read.
    page_loads: Vec<RankLoad>,
    /// Time of the next search for the values of `X-data-parallel-rank` with which requests reach each rank.
    /// `None`: at the next check.
    next_search: Option<Instant>,
}

impl BackendDriver for RankProbes {
    fn check_step(&self) -> Option<Box<dyn CheckStep>> {
        Some(Box::new(RankStep::default()))
    }
}

impl CheckStep for RankStep {
    fn reset(&mut self) {
        self.next_search = None;
    }

    fn before_scrape(&mut self, backend: &Backend) {
        let facet: Option<&RankFacet> = backend.facets.get();
        self.is_read = facet.is_some_and(|facet| facet.is_enabled.get());
        self.targets = backend.facets.targets.parts();
        let targets = self.targets.iter().flat_map(|targets| targets.iter());
        self.local_loads = targets
            .map(|target| target.estimator.local_load())
            .collect();
    }

    fn read_page(&mut self, page: &[u8], load: Option<&EngineLoad>) {
        self.page_loads.clear();
        let has_ranks = load
            .and_then(|load| load.engines)
            .is_some_and(|engines| engines > 1.0);
        if self.is_read && has_ranks {
            self.page_loads = RankLoad::read_all(page);
        }
    }

    /// If the backend has other ranks than before, leaves the choice of a rank to the backend.
    fn after_scrape(&mut self, backend: &Backend, scraped_at: Instant) {
        let Some(targets) = self.targets.take() else {
            return;
        };
        let numbers = targets.iter().map(|target| target.part.number);
        if !numbers.eq(self.page_loads.iter().map(|load| load.rank)) {
            return backend.facets.targets.clear();
        }
        let loads = self.page_loads.iter().zip(&self.local_loads);
        for (target, (load, local)) in targets.iter().zip(loads) {
            if let Some(report) = LoadReport::of(&load.load) {
                target.estimator.on_report(&report, local, scraped_at);
            }
        }
    }

    fn time(&self) -> StepTime {
        StepTime::Check
    }

    fn run<'a>(&'a mut self, checker: &'a mut HealthChecker) -> BoxFuture<'a, ()> {
        self.number_ranks(checker).boxed()
    }
}

impl RankStep {
    /// Makes the data-parallel ranks of the backend targets of routing if the configuration asks for it,
    /// once for each start of the backend. Each rank gets two test requests with one output token.
    async fn number_ranks(&mut self, checker: &mut HealthChecker) {
        let backend = checker.backend.clone();
        let Some(facet) = backend.facets.get::<RankFacet>() else {
            return;
        };
        let numbers: Vec<u32> = self.page_loads.iter().map(|load| load.rank).collect();
        let is_done = backend.facets.targets.parts().is_some() || facet.is_refused.get();
        let is_later = self.next_search.is_some_and(|next| clock::now() < next);
        if numbers.len() < 2 || is_done || is_later {
            return;
        }
        let counted: Vec<u32> = (0..).take(numbers.len()).collect();
        let mut found = self.search_ranks(checker, &numbers, &counted).await;
        let counts_from_zero = numbers.first() == Some(&0);
        if matches!(found, Err(Failure::Refused(_))) && !counts_from_zero {
            found = self.search_ranks(checker, &numbers, &numbers).await;
        }
        let id = &backend.identity.id;
        match found {
            Ok(values) => {
                tracing::info!(backend = %id, ranks = ?values, "requests are routed to the data-parallel ranks of the backend: each rank number with its value of x-data-parallel-rank");
                begin(&backend, &values);
            }
            Err(Failure::Unclear) => {
                // If two gateways search at the same time, their probes disturb each other. The random wait
                // separates their next searches.
                let wait = RETRY_INTERVAL.mul_f64(0.5 + fastrand::f64());
                self.next_search = Some(clock::now() + wait);
            }
            Err(Failure::Ignored) => {
                tracing::warn!(backend = %id, "the backend does not follow x-data-parallel-rank: it chooses the rank of each request itself");
                facet.is_refused.set(true);
            }
            Err(Failure::Refused(status)) => {
                tracing::warn!(backend = %id, status = status.as_u16(), "the backend refuses a probe of its data-parallel ranks: it chooses the rank of each request itself");
                facet.is_refused.set(true);
            }
        }
    }

    /// Finds, among `values`, the value of `X-data-parallel-rank` for each rank of `numbers`.
    /// Returns pairs of rank number and header value.
    async fn search_ranks(
        &mut self,
        checker: &mut HealthChecker,
        numbers: &[u32],
        values: &[u32],
    ) -> Result<Vec<(u32, u32)>, Failure> {
        let mut seen = Vec::new();
        for value in numbering::probes(values) {
            seen.push(self.probe_rank(checker, value).await?);
        }
        numbering::assign_values(numbers, values, &seen).ok_or(Failure::Ignored)
    }

    /// Sends a request for one output token, with `value` in the header `X-data-parallel-rank`. Returns
    /// the number of the rank whose counter on the metrics page shows the request.
    async fn probe_rank(
        &mut self,
        checker: &mut HealthChecker,
        value: u32,
    ) -> Result<u32, Failure> {
        let before = self.short_responses(checker).await?;
        let state = checker.backend.health.state();
        let model = state.models().iter().find(|model| model.parent.is_none());
        let model = model
            .map(|model| model.id.clone())
            .ok_or(Failure::Unclear)?;
        let body = json!({ "model": *model, "prompt": "1", "max_tokens": 1, "temperature": 0 });
        let post = PagePost {
            body: body.to_string().into(),
            header: Some((X_DATA_PARALLEL_RANK, HeaderValue::from(value))),
        };
        match checker.fetcher.post("/v1/completions", &post).await {
            Ok((StatusCode::OK, _)) => {}
            Ok((StatusCode::TOO_MANY_REQUESTS, _)) => return Err(Failure::Unclear),
            Ok((status, _)) if status.is_client_error() => return Err(Failure::Refused(status)),
            _ => return Err(Failure::Unclear),
        }
        for _ in 0..MAX_PAGES {
            let after = self.short_responses(checker).await?;
            let risen = after
                .iter()
                .zip(&before)
                .filter(|(after, before)| after != before);
            let risen: Vec<_> = risen.collect();
            match risen[..] {
                [] => tokio::time::sleep(PAGE_INTERVAL).await,
                [((rank, after), (same, before))]
                    if rank == same && (*after - *before - 1.0).abs() < 0.5 =>
                {
                    return Ok(*rank);
                }
                _ => return Err(Failure::Unclear),
            }
        }
        Err(Failure::Unclear)
    }

    /// Reads from the metrics page how many responses of each rank had one output token. Returns
    /// pairs of rank number and count.
    async fn short_responses(
        &mut self,
        checker: &mut HealthChecker,
    ) -> Result<Vec<(u32, f64)>, Failure> {
        let page = checker
            .read_metrics(|page, load| self.read_page(page, load))
            .await;
        page.map_err(|_| Failure::Unclear)?;
        let ranks = self.page_loads.iter();
        let counts = ranks.map(|load| Some((load.rank, load.short_responses?)));
        counts.collect::<Option<_>>().ok_or(Failure::Unclear)
    }
}

/// Makes ranks targets of routing. `values`: the number of each rank, and its value of the header
/// `X-data-parallel-rank`.
fn begin(backend: &Backend, values: &[(u32, u32)]) {
    let now = clock::now();
    let horizon = backend.load.estimator.horizon();
    let mut parts = Vec::new();
    for (index, (number, value)) in values.iter().enumerate() {
        parts.push(PartialTarget {
            header: X_DATA_PARALLEL_RANK,
            header_value: HeaderValue::from(*value),
            refusal: REFUSED_FIELD,
            estimator: LoadEstimator::new(now, horizon),
            part: TargetPart {
                number: *number,
                index,
                count: values.len(),
            },
            key: mix(backend.identity.id_hash ^ mix(u64::from(*number) + 1)),
        });
    }
    backend.facets.targets.set(parts);
}
