//! The rule about the GPUs of a backend. Its data comes from the metrics pages of GPU exporters.

use crate::rule::prelude::*;

pub(super) const THROTTLED: DiagnosisRule = DiagnosisRule {
    name: "gpu_throttled",
    meaning: "A GPU lowers its clock because of its temperature or of its power supply.",
    evidence: "A GPU has the clock event reason `hw_slowdown`, `sw_thermal`, `hw_thermal` or \
               `hw_power_brake` in 80 % of the samples of the last minute, and now. Needs a GPU \
               exporter with `DCGM_FI_DEV_CLOCKS_EVENT_REASONS` or `DCGM_EXP_CLOCK_EVENTS_COUNT`.",
    remedy: "Check fans, air flow, the power cables, and the host's log for hardware slowdown; \
             until then lower the weight of the backend.",
    disproof: "nvidia-smi -q -d PERFORMANCE on the host shows no thermal slowdown and no power \
               brake as active.",
    needs: &[StepSignal::GpuThrottled],
    judge: |evaluation| Ok(judge_throttled(evaluation)),
    ..DiagnosisRule::ENGINE
};

fn judge_throttled(evaluation: &Evaluation<'_>) -> Option<RuleMatch> {
    if !is_throttled(evaluation) {
        return None;
    }
    let measures = [
        WindowMeasure::GpuThrottled,
        WindowMeasure::GpuTemperature,
        WindowMeasure::GpuUtilization,
    ];
    let slow = evaluation.slow_inter_token_evidence();
    let cause = (!slow.is_empty()).then_some("tokens are late at the same time");
    Some(RuleMatch {
        cause: cause.map(Into::into),
        ..evaluation.found(1 + slow.len(), &measures).with(slow)
    })
}

/// Whether a GPU of the backend lowered its clock because of a fault in at least 80 % of the last minute, and
/// still does. False if no exporter reports whether the GPUs lower their clocks.
pub(super) fn is_throttled(evaluation: &Evaluation<'_>) -> bool {
    let window = evaluation.minute;
    let is_throttled_now = window
        .latest(StepSignal::GpuThrottled)
        .is_none_or(|share| share >= 0.5);
    is_throttled_now
        && window.has_signal(StepSignal::GpuThrottled)
        && window.fraction_at_least(StepSignal::GpuThrottled, 0.5) >= 0.8
}
