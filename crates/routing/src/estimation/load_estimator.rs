//! Estimates the present load of one backend from its last report and from the requests of this gateway.
//! [`LoadEstimator::candidate`] reads a few dozen atomics and takes no lock.
//!
//! A report describes the time of its scrape. The estimate adds the requests that this gateway has sent since,
//! and subtracts its requests that have ended since. With the age of the report, the estimate moves gradually
//! from the report to local load and the mean of external load: `certainty = horizon ÷ (horizon + age)`. There
//! is no threshold on the age, so choices do not change abruptly.

mod cached_prompt;
mod delays;

use super::cached_tokens::KnownPrefix;
use super::learned_estimates::LearnedEstimates;
use super::limits::{at_least_0, at_most};
use super::load_report::LastReport;
use super::other_backlogs::OtherBacklogs;
use super::pending_outputs::{PendingOutputId, PendingOutputs};
use super::reservation::{LocalLoad, Reservation};
use crate::prefix_table::PrefixTable;
use crate::{Candidate, PrefillCost, PromptFingerprint, kv_aware};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokenweir_protocol::atomic::AtomicF64;
use tokenweir_protocol::clock;
use tokenweir_protocol::openai::Usage;

use remote_prompts::RemotePrompts;
use token_gaps::TokenGaps;

/// State from which the load of one backend is estimated. Times are seconds since `started`.
#[derive(Debug, Default)]
#[repr(C)] // the fields that routing decisions read come first, next to each other
pub struct LoadEstimator {
    /// The time of creation, as [`clock::nanos`] counts it.
    started: i64,
    /// Age in seconds at which a report has the weight ½.
    horizon: AtomicF64,
    in_flight: AtomicU32,
    /// See [`Candidate::credit`].
    credit: AtomicI64,
    /// Streams in flight without a first output.
    pending_output_count: AtomicU32,
    /// Streams in flight with output.
    decoding_streams: AtomicU32,
    /// Maximum of `decoding_streams` and of the running requests in reports. The engine has at least as many
    /// slots.
    most_running: AtomicU32,
    /// Streams that have had a first output and are stalled now.
    stalled_streams: AtomicU32,
    /// Prompt tokens that the engine has to compute for the pending streams.
    backlog_tokens: AtomicU64,
    /// Tokens that the requests in flight may hold in the KV cache.
    kv_tokens: AtomicU64,
    last_sent_at: AtomicF64,
    /// Time at which a pending stream last had output or ended, or at which the backlog began.
    prefill_progress_at: AtomicF64,
    /// Time at which the prompts of the non-streaming requests will probably be computed. Their first outputs
    /// cannot be observed.
    unobserved_prefill_until: AtomicF64,
    /// Time at which a request last had its first output.
    last_output_at: AtomicF64,
    /// Time at which a stream last began to stall.
    stalled_since: AtomicF64,
    pending_outputs: PendingOutputs,
    last_report: LastReport,
    /// The prompts that were sent to the backend by this gateway and, as far as known, by others. The first
    /// prompt creates the table.
    prefix_table: OnceLock<PrefixTable>,
    other_backlogs: OtherBacklogs,
    token_gaps: TokenGaps,
    remote_prompts: RemotePrompts,
    /// Must be the last field, because routing decisions do not read the end of `LearnedEstimates`.
    learned_estimates: LearnedEstimates,
}

impl LoadEstimator {
    /// An estimator without observations. `horizon`: age at which a report has the weight ½.
    pub fn new(now: Instant, horizon: Duration) -> Self {
        let estimator = Self {
            started: clock::nanos(now),
            ..Self::default()
        };
        estimator.set_horizon(horizon);
        estimator
    }

    /// Sum over the requests of this gateway in flight at the backend.
    pub fn local_load(&self) -> LocalLoad {
        LocalLoad {
            in_flight: self.in_flight.load(Ordering::Relaxed),
            pending: self.pending_output_count.load(Ordering::Relaxed),
            backlog: self.backlog_tokens.load(Ordering::Relaxed),
            tokens: self.kv_tokens.load(Ordering::Relaxed),
        }
    }

    /// Estimates learned from the responses of the backend.
    pub fn learned(&self) -> &LearnedEstimates {
        &self.learned_estimates
    }

    /// Weight of the last report: 1 when it is new, ½ at the horizon, 0 without a report.
    pub fn certainty(&self, now: Instant) -> f64 {
        self.certainty_at(self.seconds(now))
    }

    /// Size of the prefix table in bytes.
    pub fn prefix_table_bytes(&self) -> usize {
        self.prefix_table.get().map_or(0, PrefixTable::bytes)
    }

    /// The estimated state of the backend for a prompt. The caller must set `position`, `part`, `weight`,
    /// `has_adapter`, `needs_adapter` and `key`.
    pub fn candidate(&self, prompt: &PromptFingerprint, now: Instant) -> Candidate {
        self.candidate_with(prompt, None, 0, clock::nanos(now))
    }

    /// The estimated state of the backend for a prompt. `known`: the cached part of the prompt that KV events
    /// show. `expected_blocks`: a first guess at the number of cached blocks, which is that of the previous
    /// candidate. `now`: see [`clock::nanos`], which a decision among many backends calls once.
    pub fn candidate_with(
        &self,
        prompt: &PromptFingerprint,
        known: Option<&KnownPrefix>,
        expected_blocks: u32,
        now: i64,
    ) -> Candidate {
        let cached = self.cached_tokens(prompt, known, expected_blocks);
        let local_load = self.local_load();
        let now = self.seconds_at(now);
        let certainty = self.certainty_at(now);
        let load = self.last_report.load(&local_load, certainty);
        let in_flight = f64::from(local_load.in_flight);
        let pending = f64::from(local_load.pending);
        let prefill = self.learned_estimates.prefill();
        let external_waiting = at_most(at_least_0(load.waiting - pending), load.external);
        let others = self.backlog_of_others(external_waiting, &prefill, now);
        let backlog = self.remaining_backlog(&local_load, &prefill, now) + others;
        Candidate {
            position: 0,
            part: None,
            in_flight: local_load.in_flight,
            tokens_in_flight: local_load.tokens as f64,
            weight: 1,
            credit: self.credit(),
            has_adapter: true,
            needs_adapter: false,
            key: 0,
            prompt: cached.prompt,
            cached: cached.cached,
            cached_blocks: cached.cached_blocks,
            cached_source: cached.source,
            backlog,
            prefill,
            prefill_freshness: self.prefill_freshness(&local_load, now),
            waiting: load.waiting,
            running: at_least_0(in_flight + load.external - load.waiting),
            reported: load.reported,
            kv_usage: load.kv_usage,
            certainty,
            overdue: self.overdue(&local_load, now),
            token_gap: self.token_gaps.slowed_mean(),
            // Values that are only copied come last, because registers cannot hold them during the
            // calculations.
            output: self.learned_estimates.output_tokens(),
            is_calibrated: self.learned_estimates.ttft().is_some(),
            has_usage: self.learned_estimates.has_usage(),
            idle_seconds: at_least_0(now - self.last_sent_at.get()),
            capacity: self.last_report.capacity(),
        }
    }

    /// Adds a request that is sent to the backend. The first output of a non-streaming request cannot be
    /// observed, so its prompt is assumed to be computed at the learned speed.
    pub fn reserve(
        &self,
        candidate: &Candidate,
        prompt: &PromptFingerprint,
        is_stream: bool,
        now: Instant,
    ) -> Reservation {
        let uncached = (candidate.prompt - candidate.cached).max(0.0) as u64;
        let sent_at = self.seconds(now);
        let reservation = Reservation {
            tokens: uncached + candidate.output as u64,
            uncached,
            remote: None,
            cached: candidate.cached as u64,
            work: candidate.backlog + uncached as f64,
            text_bytes: if prompt.media == 0 { prompt.bytes } else { 0 },
            sent: now,
            began: None,
            ticket: self.expect_output(candidate, is_stream, sent_at),
            may_lack_slot: self.may_lack_slot(candidate),
            freshness: candidate.prefill_freshness,
            is_stream,
            is_pending: is_stream,
        };
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.kv_tokens
            .fetch_add(reservation.tokens, Ordering::Relaxed);
        self.last_sent_at.set(sent_at);
        self.begin_prefill(&reservation, &candidate.prefill, sent_at);
        let block_tokens = f64::from(prompt.block_bytes) * candidate.prompt / prompt.bytes as f64;
        self.add_to_prefix_table(prompt, block_tokens);
        reservation
    }

    /// See [`Candidate::credit`].
    pub fn credit(&self) -> i64 {
        self.credit.load(Ordering::Relaxed)
    }

    /// Changes [`Candidate::credit`].
    pub fn add_credit(&self, change: i64) {
        self.credit.fetch_add(change, Ordering::Relaxed);
    }

    /// Records that the backend still has to compute `tokens` prompt tokens for gateway number `peer`. The
    /// number replaces the previous one, so the effect of a lost report ends with the next one.
    pub fn set_other_backlog(&self, peer: usize, tokens: u64, now: Instant) {
        self.other_backlogs.set(peer, tokens, self.seconds(now));
    }

    /// Records that another gateway sent a prompt to the backend.
    pub fn on_peer_prompt(&self, prompt: &PromptFingerprint) {
        let block_tokens = prompt.block_tokens(self.learned_estimates.tokens_per_byte());
        self.add_to_prefix_table(prompt, block_tokens);
    }

    /// Records the first output of a stream. Later calls for the same reservation have no effect.
    pub fn first_output(&self, reservation: &mut Reservation, now: Instant) {
        if !self.end_prefill(reservation, now) {
            return;
        }
        self.last_output_at.set(self.seconds(now));
        reservation.began = Some(now);
        if let Some(id) = reservation.ticket.take() {
            self.pending_outputs.on_output(id);
        }
        let decoding = self.decoding_streams.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_running.fetch_max(decoding, Ordering::Relaxed);
        if reservation.remote.is_none() {
            let seconds = now
                .saturating_duration_since(reservation.sent)
                .as_secs_f64();
            self.learned_estimates.on_first_output(reservation, seconds);
        }
    }

    /// Learns from the token usage that a response reported.
    pub fn answered(&self, reservation: &mut Reservation, usage: &Usage) {
        // A response without output shows nothing about the engine, because the API server of the backend
        // itself creates errors.
        if reservation.began.is_none() && usage.output.is_some_and(|output| output > 0) {
            reservation.began = Some(reservation.sent);
            if let Some(id) = reservation.ticket.take() {
                self.pending_outputs.on_output(id);
            }
        }
        self.learned_estimates.on_usage(reservation, usage);
    }

    /// Removes a request that has ended for any reason.
    pub fn release(&self, mut reservation: Reservation, now: Instant) {
        let was_pending = self.end_prefill(&mut reservation, now);
        if reservation.is_stream && !was_pending {
            self.decoding_streams.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(id) = reservation.ticket {
            self.pending_outputs.remove(id);
        }
        if let Some(began) = reservation.began {
            let seconds = now.saturating_duration_since(began).as_secs_f64();
            self.learned_estimates.on_end(seconds);
        }
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.kv_tokens
            .fetch_sub(reservation.tokens, Ordering::Relaxed);
    }

    /// Records that a stream has stalled after its first output, or has resumed.
    pub fn on_stall_change(&self, is_stalled: bool, now: Instant) {
        if is_stalled {
            self.stalled_since.set(self.seconds(now));
            self.stalled_streams.fetch_add(1, Ordering::Relaxed);
        } else {
            self.stalled_streams.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Number of streams that are stalled now.
    pub fn silent(&self) -> u32 {
        self.stalled_streams.load(Ordering::Relaxed)
    }

    /// Forgets the reports of the backend and everything learned from its responses, because the estimates are
    /// unusable. The requests in flight stay counted.
    pub fn forget_observations(&self) {
        self.on_restart();
        self.last_report.forget();
        self.learned_estimates.forget();
        self.unobserved_prefill_until.set(0.0);
    }

    fn add_to_prefix_table(&self, prompt: &PromptFingerprint, block_tokens: f64) {
        if !prompt.blocks.is_empty() {
            let table = || PrefixTable::new(self.last_report.cache_blocks(block_tokens) as usize);
            self.prefix_table.get_or_init(table).touch(&prompt.blocks);
        }
    }

    fn begin_prefill(&self, reservation: &Reservation, prefill: &PrefillCost, now: f64) {
        if !reservation.is_pending {
            let work = reservation.uncached as f64 * prefill.per_token;
            self.unobserved_prefill_until
                .set(self.unobserved_prefill_until.get().max(now) + work);
            return;
        }
        self.backlog_tokens
            .fetch_add(reservation.uncached, Ordering::Relaxed);
        if self.pending_output_count.fetch_add(1, Ordering::Relaxed) == 0 {
            self.prefill_progress_at.set(now);
        }
    }

    fn end_prefill(&self, reservation: &mut Reservation, now: Instant) -> bool {
        let was_pending = std::mem::take(&mut reservation.is_pending);
        if was_pending {
            self.pending_output_count.fetch_sub(1, Ordering::Relaxed);
            self.backlog_tokens
                .fetch_sub(reservation.uncached, Ordering::Relaxed);
            self.prefill_progress_at.set(self.seconds(now));
        }
        was_pending
    }

    /// Adds a request to the pending outputs, with its predicted time. `None`: a non-streaming request was not
    /// added, because the mean response time is not known yet.
    fn expect_output(
        &self,
        candidate: &Candidate,
        is_stream: bool,
        now: f64,
    ) -> Option<PendingOutputId> {
        let ttft = kv_aware::ttft(&kv_aware::KvAwareSettings::default(), candidate, false);
        // The backend's mean TTFT contains waits that the prediction lacks.
        let ttft = ttft.max(self.learned_estimates.ttft().unwrap_or(0.0));
        let response_seconds = if is_stream {
            None
        } else {
            Some(self.learned_estimates.answer()?)
        };
        let table_age = self.prefix_table.get().map_or(0, PrefixTable::age);
        Some(
            self.pending_outputs
                .add(ttft, response_seconds, now, table_age),
        )
    }

    /// Whether the engine may have no free slot for the adapter of a request: it is not idle, and has never been
    /// seen to run more requests at once than it has now. Without an adapter, a wait shows that the engine has
    /// more load than the gateway knows.
    fn may_lack_slot(&self, candidate: &Candidate) -> bool {
        let had_slots = f64::from(self.most_running.load(Ordering::Relaxed));
        candidate.needs_adapter && candidate.running + candidate.waiting >= had_slots.max(1.0)
    }

    fn certainty_at(&self, now: f64) -> f64 {
        let horizon = self.horizon.get();
        self.last_report
            .age(now)
            .map_or(0.0, |age| horizon / (horizon + age))
    }

    /// Seconds since the estimator was created.
    fn seconds(&self, now: Instant) -> f64 {
        self.seconds_at(clock::nanos(now))
    }

    fn seconds_at(&self, nanos: i64) -> f64 {
        at_least_0((nanos - self.started) as f64 / 1e9)
    }
}

pub(super) mod remote_prefill;
mod remote_prompts;
mod reports;
#[cfg(test)]
mod tests;
mod token_gaps;
