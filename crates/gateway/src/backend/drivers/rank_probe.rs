//! Finds out, with test requests (probes), which value of the header `X-data-parallel-rank` leads to
//! which data-parallel rank of a backend.

use crate::backend::facets::ranks::numbering;
use crate::backend::health_checker::HealthChecker;
use http::{HeaderValue, StatusCode};
use serde_json::json;
use std::time::Duration;
use tokenweir_net::page_fetcher::PagePost;
use tokenweir_protocol::clock;
use tokenweir_protocol::headers::X_DATA_PARALLEL_RANK;

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

impl HealthChecker {
    /// Makes the data-parallel ranks of the backend targets of routing if the configuration asks for it,
    /// once for each start of the backend. Each rank gets two test requests with one output token.
    pub(super) async fn number_ranks(&mut self) {
        let backend = self.backend.clone();
        let ranks = &backend.facets.ranks;
        let page_loads = self.facets.ranks.page_loads.iter();
        let numbers: Vec<u32> = page_loads.map(|load| load.rank).collect();
        let is_done = ranks.count() > 0 || ranks.is_refused.get();
        let is_later = self.facets.ranks.next_search.is_some_and(|next| clock::now() < next);
        if numbers.len() < 2 || is_done || is_later {
            return;
        }
        let counted: Vec<u32> = (0..).take(numbers.len()).collect();
        let mut found = self.search_ranks(&numbers, &counted).await;
        let counts_from_zero = numbers.first() == Some(&0);
        if matches!(found, Err(Failure::Refused(_))) && !counts_from_zero {
            found = self.search_ranks(&numbers, &numbers).await;
        }
        let id = &backend.identity.id;
        match found {
            Ok(values) => {
                tracing::info!(backend = %id, ranks = ?values, "requests are routed to the data-parallel ranks of the backend: each rank number with its value of x-data-parallel-rank");
                let horizon = backend.load.estimator.horizon();
                ranks.begin(&values, backend.identity.id_hash, clock::now(), horizon);
            }
            Err(Failure::Unclear) => {
                // The probes of two gateways that search at the same time disturb each other. The
                // random wait prevents this at the next search.
                let wait = RETRY_INTERVAL.mul_f64(0.5 + fastrand::f64());
                self.facets.ranks.next_search = Some(clock::now() + wait);
            }
            Err(Failure::Ignored) => {
                tracing::warn!(backend = %id, "the backend does not follow x-data-parallel-rank: it chooses the rank of each request itself");
                ranks.end(true);
            }
            Err(Failure::Refused(status)) => {
                tracing::warn!(backend = %id, status = status.as_u16(), "the backend refuses a probe of its data-parallel ranks: it chooses the rank of each request itself");
                ranks.end(true);
            }
        }
    }

    /// Finds, among `values`, the value of `X-data-parallel-rank` for each rank of `numbers`.
    /// Returns pairs of rank number and header value.
    async fn search_ranks(
        &mut self,
        numbers: &[u32],
        values: &[u32],
    ) -> Result<Vec<(u32, u32)>, Failure> {
        let mut seen = Vec::new();
        for value in numbering::probes(values) {
            seen.push(self.probe_rank(value).await?);
        }
        numbering::assign_values(numbers, values, &seen).ok_or(Failure::Ignored)
    }

    /// Sends a request for one output token, with `value` in the header `X-data-parallel-rank`. Returns
    /// the number of the rank whose counter on the metrics page shows the request.
    async fn probe_rank(&mut self, value: u32) -> Result<u32, Failure> {
        let before = self.short_responses().await?;
        let state = self.backend.health.state();
        let model = state.models().iter().find(|model| model.parent.is_none());
        let model = model.map(|model| model.id.clone()).ok_or(Failure::Unclear)?;
        let body = json!({ "model": *model, "prompt": "1", "max_tokens": 1, "temperature": 0 });
        let post = PagePost {
            body: body.to_string().into(),
            header: Some((X_DATA_PARALLEL_RANK, HeaderValue::from(value))),
        };
        match self.fetcher.post("/v1/completions", &post).await {
            Ok((StatusCode::OK, _)) => {}
            Ok((StatusCode::TOO_MANY_REQUESTS, _)) => return Err(Failure::Unclear),
            Ok((status, _)) if status.is_client_error() => return Err(Failure::Refused(status)),
            _ => return Err(Failure::Unclear),
        }
        for _ in 0..MAX_PAGES {
            let after = self.short_responses().await?;
            let risen = after.iter().zip(&before).filter(|(after, before)| after != before);
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
    async fn short_responses(&mut self) -> Result<Vec<(u32, f64)>, Failure> {
        let page = self.metrics_page.fetch(&mut self.fetcher, &mut self.facets).await;
        page.map_err(|_| Failure::Unclear)?;
        let ranks = self.facets.ranks.page_loads.iter();
        let counts = ranks.map(|load| Some((load.rank, load.short_responses?)));
        counts.collect::<Option<_>>().ok_or(Failure::Unclear)
    }
}
