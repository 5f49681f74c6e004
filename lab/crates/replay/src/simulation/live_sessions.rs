//! Admission by live sessions in a simulated gateway: the rule of the real gateway, with its section `sessions`.

use super::gateway::QueuedArrival;
use super::{InFlightRequest, Simulation};
use crate::trace::TraceRequest;
use std::time::Duration;
use tokenweir_routing::admission::QueuedRequest;
use tokenweir_routing::sessions::{ContextId, Turn, TurnKind, TurnTokens, WorkingSet};

/// The number of output tokens that a running request counts for, as in the real gateway.
const ASSUMED_OUTPUT_TOKENS: u64 = 256;
/// The share of its wait, in percent, for which a request waits for room, as in the real gateway.
const GATED_PERCENT: u32 = 90;

impl Simulation<'_> {
    /// The kind of turn that a request is for admission by live sessions.
    pub(super) fn turn_kind(&mut self, gateway: usize, number: usize) -> TurnKind {
        if self.in_flight[number].context.is_some() {
            return TurnKind::OfLiveSession;
        }
        let now = self.setup.epoch + self.now;
        let turn = turn(&self.requests[number]);
        let set = self.gateways[gateway].working_set.as_mut();
        set.map_or(TurnKind::Unlimited, |set| set.turn_kind(&turn, now))
    }

    /// Whether a new request may pass all waiting ones, because they wait for room beside the live sessions and
    /// it does not. While no session waits for room, requests wait as without the rule, so that a comparison shows
    /// the effect of the rule.
    pub(super) fn passes_held(
        &mut self,
        gateway: usize,
        request: &QueuedRequest<QueuedArrival>,
        kind: TurnKind,
    ) -> bool {
        if !self.holds_sessions(gateway) {
            return false;
        }
        let now = self.setup.epoch + self.now;
        let waiting = self.drain_queue(gateway);
        kind != TurnKind::Waits && !waiting.has_for(request, now)
    }

    /// The time until which a request waits for room, if its whole wait ends at `deadline`.
    pub(super) fn gated_until(
        &self,
        gateway: usize,
        kind: TurnKind,
        deadline: Duration,
    ) -> Option<Duration> {
        let is_new =
            matches!(kind, TurnKind::Fits | TurnKind::Waits) && self.holds_sessions(gateway);
        let wait = deadline.saturating_sub(self.now);
        is_new.then(|| self.now + wait * GATED_PERCENT / 100)
    }

    fn holds_sessions(&self, gateway: usize) -> bool {
        let set = self.gateways[gateway].working_set.as_ref();
        set.is_some_and(WorkingSet::holds_sessions)
    }

    /// Sends a request that has waited for room for the longest time.
    pub(super) fn pass_gate(&mut self, number: usize) {
        if self.in_flight[number].queued.is_some() {
            let gateway = self.in_flight[number].gateway;
            self.drain_queue(gateway);
        }
    }

    /// Counts a sent request as a turn. A request that is sent again keeps its context.
    pub(super) fn begin_context(&mut self, gateway: usize, number: usize) -> Option<ContextId> {
        let request = &self.in_flight[number];
        if request.context.is_some() {
            return request.context;
        }
        let is_overdue = request.gated_until.is_some_and(|until| self.now >= until);
        let now = self.setup.epoch + self.now;
        let turn = turn(&self.requests[number]);
        let set = self.gateways[gateway].working_set.as_mut()?;
        set.begin(&turn, is_overdue, now)
    }

    /// Whether a request that ends now with `output` output tokens missed an objective. `None`: no objective.
    fn has_missed(&self, number: usize, output: u32) -> Option<bool> {
        let limits = self.admission?.thresholds.limits;
        let arrival = self.results.arrivals[number];
        let first_output_at = self.in_flight[number].first_output_at;
        let decode = self.now.saturating_sub(first_output_at).as_secs_f64();
        let ttft = first_output_at.as_secs_f64() - arrival;
        let tpot = decode / f64::from(output.max(2) - 1);
        let is_late = limits.ttft.map(|limit| ttft > limit);
        let is_slow = limits.tpot.map(|limit| tpot > limit);
        is_late.max(is_slow)
    }

    /// Ends the turn of a request. `output`: its number of output tokens. `None`: it failed.
    pub(super) fn end_context(&mut self, number: usize, output: Option<u32>) {
        let InFlightRequest {
            gateway,
            context,
            cached_tokens,
            ..
        } = self.in_flight[number];
        let now = self.setup.epoch + self.now;
        let has_missed = output.and_then(|output| self.has_missed(number, output));
        let job = &self.requests[number];
        let set = self.gateways[gateway].working_set.as_mut();
        let Some((set, context)) = set.zip(context) else {
            return;
        };
        let tokens = output.map(|output| TurnTokens {
            prompt: job.prompt_tokens.into(),
            cached: Some(cached_tokens.into()),
            output: output.into(),
            has_missed,
        });
        if output.is_some() {
            set.learn_tokens(&job.prompt, job.prompt_tokens.into());
        }
        set.end(context, tokens, now);
    }
}

fn turn(job: &TraceRequest) -> Turn<'_> {
    Turn {
        prompt: &job.prompt,
        session: job.session,
        output: ASSUMED_OUTPUT_TOKENS,
    }
}
