//! The rules about the GPUs of a backend. Their data comes from the metrics pages of GPU exporters.

use super::rule::DiagnosisRule;
use crate::evaluation::{Evaluation, RuleMatch, RuleResult};
use crate::history::{StepSignal, WindowMeasure};
use crate::verdict::{Evidence, VerdictSeverity};

/// Below this utilisation, the GPUs count as idle although requests wait in the engine.
const IDLE_UTILIZATION: f64 = 0.3;
/// If the GPU memory will be full within this number of hours at the present rate, the cause of the verdict
/// says so.
const NEAR_HOURS: f64 = 24.0;
const GIB: f64 = 1_073_741_824.0;

pub(super) const THROTTLED: DiagnosisRule = DiagnosisRule {
    name: "gpu_throttled",
    severity: VerdictSeverity::Warning,
    meaning: "A GPU lowers its clock because of its temperature or of its power supply.",
    evidence: "A GPU has the clock event reason `hw_slowdown`, `sw_thermal`, `hw_thermal` or \
               `hw_power_brake` in 80 % of the samples of the last minute, and now. Needs a GPU \
               exporter with `DCGM_FI_DEV_CLOCKS_EVENT_REASONS` or `DCGM_EXP_CLOCK_EVENTS_COUNT`.",
    excluded: "",
    remedy: "Check fans, air flow, the power cables, and the host's log for hardware slowdown; \
             until then lower the weight of the backend.",
    disproof: "nvidia-smi -q -d PERFORMANCE on the host shows no thermal slowdown and no power \
               brake as active.",
    pages: false,
    explained_by: &[],
    needs: &[StepSignal::GpuThrottled],
    judge: |evaluation| Ok(judge_throttled(evaluation)),
};

pub(super) const MEMORY_GROWTH: DiagnosisRule = DiagnosisRule {
    name: "gpu_memory_growth",
    severity: VerdictSeverity::Warning,
    meaning: "The used GPU memory has grown for at least half an hour, although an engine allocates \
              its memory at its start.",
    evidence: "The lowest used memory of each five minutes grew by ≥ 2 % of the whole memory in \
               the observed time, at most six hours. It never fell by 0.5 %, and a quarter of the \
               growth is in the second half. Needs a GPU exporter.",
    excluded: "the backend restarted in this time",
    remedy: "Plan a restart before the memory is full. Check whether another process uses the GPU, \
             and which requests cause the growth.",
    disproof: "nvidia-smi shows that another process owns the growing memory.",
    pages: false,
    explained_by: &[],
    needs: &[StepSignal::GpuMemory],
    judge: judge_memory_growth,
};

pub(super) const IDLE_WITH_QUEUE: DiagnosisRule = DiagnosisRule {
    name: "gpu_idle_with_queue",
    severity: VerdictSeverity::Warning,
    meaning: "Requests wait in the engine while its GPUs compute less than 30 % of the time.",
    evidence: "Two or more requests wait in the engine in 80 % of the samples of 45 s. The mean \
               utilisation of its GPUs is below 30 % in 80 % of the samples of the last minute, \
               and now. Needs a GPU exporter.",
    excluded: "`blind` or `kv_thrashing` holds",
    remedy: "Give the engine more CPU, check for a slow tokenizer, guided decoding or \
             preprocessing on the CPU, and raise --max-num-seqs if all sequence slots are in use.",
    disproof: "The exporter samples another GPU: its index or its pod is not that of this backend.",
    pages: false,
    explained_by: &["blind", "kv_thrashing"],
    needs: &[StepSignal::GpuUtilization, StepSignal::Waiting],
    judge: |evaluation| Ok(judge_idle_with_queue(evaluation)),
};

fn judge_throttled(evaluation: &Evaluation<'_>) -> Option<RuleMatch> {
    if !is_throttled(evaluation) {
        return None;
    }
    let mut evidence = evaluation.evidence_for_all(&[
        WindowMeasure::GpuThrottled,
        WindowMeasure::GpuTemperature,
        WindowMeasure::GpuUtilization,
    ]);
    let slow = evaluation.slow_inter_token_evidence();
    let signals = 1 + slow.len();
    let cause = (!slow.is_empty()).then_some("tokens are late at the same time");
    evidence.extend(slow);
    Some(RuleMatch { cause, ..RuleMatch::new(signals, evidence) })
}

/// Whether a GPU of the backend lowered its clock because of a fault in at least 80 % of the last
/// minute, and still lowers it. False if no exporter reports whether the GPUs lower their clocks.
pub(super) fn is_throttled(evaluation: &Evaluation<'_>) -> bool {
    let window = evaluation.short_window();
    let is_throttled_now = window.latest(StepSignal::GpuThrottled).is_none_or(|share| share >= 0.5);
    is_throttled_now
        && window.has_signal(StepSignal::GpuThrottled)
        && window.fraction_at_least(StepSignal::GpuThrottled, 0.5) >= 0.8
}

fn judge_memory_growth(evaluation: &Evaluation<'_>) -> RuleResult {
    let memory = evaluation.history.gpu_memory();
    if !memory.is_known() {
        return Err(vec!["half an hour of GPU memory"]);
    }
    let Some(growth) = memory.growth() else { return Ok(None) };
    let evidence = |measure, value, unit| Evidence::new(measure, value, unit, growth.seconds);
    let mut values = vec![
        evidence("gpu_memory_growth", growth.bytes_per_hour / GIB, "GiB/h"),
        evidence("gpu_memory_until_full", growth.hours_until_full, "h"),
    ];
    values.extend(evaluation.evidence(WindowMeasure::GpuMemory));
    let is_near = growth.hours_until_full <= NEAR_HOURS;
    let rule_match = RuleMatch::new(1 + usize::from(is_near), values);
    let cause = "the memory is full within a day at this rate";
    Ok(Some(if is_near { rule_match.because(cause) } else { rule_match }))
}

fn judge_idle_with_queue(evaluation: &Evaluation<'_>) -> Option<RuleMatch> {
    let window = evaluation.short_window();
    let busy = window.fraction_at_least(StepSignal::GpuUtilization, IDLE_UTILIZATION);
    let is_idle_now =
        window.latest(StepSignal::GpuUtilization).is_none_or(|share| share < IDLE_UTILIZATION);
    if !evaluation.has_queue() || busy > 0.2 || !is_idle_now {
        return None;
    }
    let mut evidence = evaluation.evidence_for_all(&[
        WindowMeasure::GpuUtilization,
        WindowMeasure::Waiting,
        WindowMeasure::Running,
        WindowMeasure::KvUsage,
    ]);
    let slow = evaluation.slow_start_evidence();
    let signals = 2 + usize::from(!slow.is_empty());
    evidence.extend(slow);
    Some(RuleMatch::new(signals, evidence))
}
