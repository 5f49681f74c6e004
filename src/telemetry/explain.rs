//! Why did it go there? The last decisions, each with what was believed of every replica that the
//! request could have gone to, and with what became true. Nothing of a prompt, an answer or a
//! session is kept.

use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;
use tokenweir_core::observe::Sink;
use tokenweir_core::record::{BackendId, Considered, Decision, ModelLabel, RequestRecord, Shadow};
use tokenweir_core::routing::PolicyKind;

/// The last decisions: the sink that keeps them, each from the end of its request on.
///
/// One takes about 0.5 KiB and 0.2 KiB for each candidate, of which there are at most
/// [`Decision::MOST`], and less than 0.1 KiB for each policy in shadow. The lock is held only while
/// pointers are moved or copied.
#[derive(Debug)]
pub struct Explanations {
    most: usize,
    kept: Mutex<VecDeque<Arc<Explanation>>>,
}

/// One decision and what became of it.
#[derive(Debug)]
pub struct Explanation {
    /// A copy: the text in the record keeps the whole head of the request in memory.
    request_id: Box<str>,
    started: SystemTime,
    model: ModelLabel,
    route: Option<&'static str>,
    decision: Arc<Decision>,
    /// Every replica that was tried, and why it failed.
    attempts: Box<[(BackendId, Option<&'static str>)]>,
    ttft: Option<f64>,
    input_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    outcome: &'static str,
}

// === impl Explanations ===

impl Explanations {
    /// Keeps this many; with 0 none.
    pub fn new(most: usize) -> Self {
        Self { most, kept: Mutex::default() }
    }

    /// How many there may be.
    pub const fn most(&self) -> usize {
        self.most
    }

    /// The newest decision for a request id, if it is still there.
    pub fn get(&self, request_id: &str) -> Option<Arc<Explanation>> {
        self.newest(self.most).into_iter().find(|one| &*one.request_id == request_id)
    }

    /// The newest ones, up to `count`, the newest first.
    pub fn newest(&self, count: usize) -> Vec<Arc<Explanation>> {
        self.kept().iter().rev().take(count).cloned().collect()
    }

    fn keep(&self, explanation: Arc<Explanation>) {
        let mut kept = self.kept();
        let oldest = if kept.len() >= self.most { kept.pop_front() } else { None };
        kept.push_back(explanation);
        drop(kept);
        drop(oldest);
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<Arc<Explanation>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink for Explanations {
    fn finished(&self, record: &RequestRecord) {
        if self.most > 0
            && let Some(explanation) = Explanation::of(record)
        {
            self.keep(Arc::new(explanation));
        }
    }
}

// === impl Explanation ===

impl Explanation {
    /// `None` for a request that no replica was chosen for.
    fn of(record: &RequestRecord) -> Option<Self> {
        let attempts = record.attempts.iter();
        let [input_tokens, _, cached_tokens, _] = record.counted_tokens();
        Some(Self {
            request_id: record.request_id.as_str().into(),
            started: record.started,
            model: record.model.clone(),
            route: record.route,
            decision: record.decision.clone()?,
            attempts: attempts.map(|one| (one.backend.clone(), one.failure)).collect(),
            ttft: record.upstream_ttft().map(|ttft| ttft.as_secs_f64()),
            input_tokens,
            cached_tokens,
            outcome: record.outcome.as_str(),
        })
    }

    /// Which, where, why, and whether the prediction was right.
    pub fn summary(&self) -> Value {
        let chosen = self.decision.chosen();
        json!({
            "request_id": self.request_id,
            "time": humantime::format_rfc3339_millis(self.started).to_string(),
            "model": self.model.name(),
            "backend": chosen.backend.as_str(),
            "reason": self.decision.reason(),
            "outcome": self.outcome,
            "predicted_ttft_seconds": short(chosen.ttft),
            "actual_ttft_seconds": self.ttft.map(short),
        })
    }

    /// All of it: the candidates with the one that costs least first. Times to first token are
    /// from sending the request to the replica, in seconds.
    pub fn detail(&self) -> Value {
        let decision = &self.decision;
        let chosen = decision.chosen();
        let failed = self.attempts.iter().filter_map(|(backend, failure)| {
            Some(json!({ "backend": backend.as_str(), "failure": (*failure)? }))
        });
        // Other policies compare something else than costs.
        let has_cost = decision.policy() == PolicyKind::KvAware.name();
        let ranked = decision.ranked().into_iter();
        let candidates = ranked.map(|one| candidate(&one, one.is(&chosen), has_cost));
        json!({
            "request_id": self.request_id,
            "time": humantime::format_rfc3339_millis(self.started).to_string(),
            "model": self.model.name(),
            "route": self.route,
            "policy": decision.policy(),
            "reason": decision.reason(),
            "backend": chosen.backend.as_str(),
            "failed_attempts": failed.collect::<Vec<_>>(),
            "predicted": {
                "ttft_seconds": short(chosen.ttft),
                "input_tokens": chosen.candidate.prompt.round(),
                "cached_tokens": chosen.candidate.cached.round(),
            },
            "actual": {
                "ttft_seconds": self.ttft.map(short),
                "input_tokens": self.input_tokens,
                "cached_tokens": self.cached_tokens,
                "outcome": self.outcome,
            },
            "candidates": candidates.collect::<Vec<_>>(),
            "candidates_left_out": decision.left_out,
            "shadow": decision.shadow.iter().map(shadow).collect::<Vec<_>>(),
        })
    }
}

fn candidate(considered: &Considered<'_>, is_chosen: bool, has_cost: bool) -> Value {
    let mut fields = Map::new();
    fields.insert("backend".into(), considered.backend.as_str().into());
    fields.insert("chosen".into(), is_chosen.into());
    fields.insert("predicted_ttft_seconds".into(), json!(short(considered.ttft)));
    if has_cost {
        fields.insert("cost".into(), json!(short(considered.cost())));
    }
    if let Ok(Value::Object(believed)) = serde_json::to_value(considered.candidate) {
        fields.extend(believed.into_iter().map(|(name, value)| (name, shortened(value))));
    }
    Value::Object(fields)
}

fn shadow(shadow: &Shadow) -> Value {
    json!({
        "policy": shadow.policy,
        "reason": shadow.reason,
        "backend": shadow.backend.as_str(),
        "regret_seconds": short(shadow.regret),
    })
}

/// Six digits: more would be noise.
fn short(number: f64) -> f64 {
    format!("{number:.5e}").parse().unwrap_or(number)
}

fn shortened(value: Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => json!(number.as_f64().map(short)),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (name, shortened(value))).collect()
        }
        value => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use tokenweir_core::record::sample::streamed;

    #[test]
    fn only_the_newest_are_kept_and_an_id_that_comes_again_is_the_newer_one() {
        let explanations = Explanations::new(3);
        let mut record = streamed();
        for index in 0..5_u16 {
            Arc::make_mut(record.decision.as_mut().unwrap()).left_out = index.into();
            explanations.finished(&record);
        }
        let left_out = |one: &Arc<Explanation>| one.decision.left_out;
        let newest: Vec<usize> = explanations.newest(50).iter().map(left_out).collect();
        assert_eq!(newest, [4, 3, 2]);
        assert_eq!(explanations.get("r-1").as_ref().map(left_out), Some(4));
        assert!(explanations.get("r-2").is_none() && explanations.get("").is_none());
    }

    #[test]
    fn nothing_is_kept_if_none_are_wanted_or_none_was_made() {
        let none = Explanations::new(0);
        none.finished(&streamed());
        assert!(none.newest(50).is_empty());
        let some = Explanations::new(5);
        some.finished(&RequestRecord { decision: None, ..streamed() });
        assert!(some.newest(50).is_empty());
    }

    #[test]
    fn an_explanation_has_every_candidate_and_what_became_true() {
        let explanations = Explanations::new(1);
        explanations.finished(&streamed());
        let detail = explanations.get("r-1").unwrap().detail();
        let expected = json!({ "ttft_seconds": 0.08, "input_tokens": 12.0, "cached_tokens": 6.0 });
        assert_eq!(detail["predicted"], expected);
        let expected = json!({
            "ttft_seconds": 0.09, "input_tokens": 12, "cached_tokens": 8, "outcome": "ok",
        });
        assert_eq!(detail["actual"], expected);
        let candidates = detail["candidates"].as_array().unwrap();
        let chosen: Vec<_> =
            candidates.iter().map(|one| (&one["backend"], &one["chosen"])).collect();
        assert_eq!(chosen, [(&json!("vllm-0"), &json!(true)), (&json!("vllm-1"), &json!(false))]);
        assert_eq!(candidates[0]["backlog"], 400.0);
        assert!(candidates[0].get("key").is_none());
    }

    #[test]
    fn many_threads_may_keep_and_ask_at_once() {
        let explanations = Explanations::new(8);
        let record = streamed();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..500).for_each(|_| explanations.finished(&record)));
                scope.spawn(|| (0..500).for_each(|_| drop(explanations.get("r-1"))));
            }
        });
        assert_eq!(explanations.newest(50).len(), 8);
    }
}
