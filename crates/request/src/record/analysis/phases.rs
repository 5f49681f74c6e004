//! The phases of a request. The gateway measures some of their times. For the others, the engine reports times
//! in the response, or the gateway estimates them.

use super::first_output_wait::{Accuracy, FirstOutputWait};
use crate::record::RequestRecord;
use crate::record::phases::{RequestPhase, RequestPhases};

impl RequestRecord {
    /// The known phases of a request that has ended. The result is kept for further sinks, so this must not be
    /// called earlier.
    pub fn phases(&self) -> &RequestPhases {
        self.phases
            .get_or_determine(|| RequestPhases::from_record(self))
    }
}

impl RequestPhases {
    /// The known phases of a request.
    pub fn from_record(record: &RequestRecord) -> Self {
        let engine = record.observed.engine_times.unwrap_or_default();
        let mut phases = Self::default();
        phases.set(
            RequestPhase::GatewayQueue,
            record.gateway_queue_wait(),
            false,
        );
        phases.set(RequestPhase::Gateway, record.overhead(), false);
        phases.set(
            RequestPhase::FailedAttempts,
            record.failed_attempts(),
            false,
        );
        phases.set(RequestPhase::RemotePrefill, record.time_apart(), false);
        phases.set(
            RequestPhase::Decode,
            engine.decode.or_else(|| record.decode()),
            false,
        );
        if record.upstream_ttft().is_some() {
            phases.set_wait(&FirstOutputWait::from_record(record));
        } else {
            phases.set(RequestPhase::EngineQueue, engine.queue, false);
            phases.set(RequestPhase::Prefill, engine.prefill, false);
        }
        phases
    }

    /// Sets the phases between sending the request and its first output.
    fn set_wait(&mut self, wait: &FirstOutputWait) {
        let known = |took, accuracy| (accuracy != Accuracy::Unknown).then_some(took);
        let is_estimated = |accuracy| accuracy != Accuracy::Measured;
        let queue = wait.queue_accuracy;
        let prefill = wait.prefill_accuracy;
        let is_rest_estimated = is_estimated(queue) || is_estimated(prefill);
        self.set(RequestPhase::FrontEnd, Some(wait.front_end), false);
        self.set(
            RequestPhase::EngineQueue,
            known(wait.queue, queue),
            is_estimated(queue),
        );
        self.set(
            RequestPhase::Prefill,
            known(wait.prefill, prefill),
            is_estimated(prefill),
        );
        self.set(
            RequestPhase::Unexplained,
            Some(wait.unexplained),
            is_rest_estimated,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::PhaseDuration;
    use crate::record::fixtures::{at, streamed};
    use std::time::Duration;
    use tokenweir_protocol::openai::EngineTimes;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// The names and milliseconds of the phases. `~` marks an estimate.
    fn shown(record: &RequestRecord) -> String {
        let shown = |span: PhaseDuration| {
            let mark = if span.is_estimated { "~" } else { "" };
            format!("{} {mark}{}", span.phase.as_str(), span.took.as_millis())
        };
        let phases: Vec<String> = RequestPhases::from_record(record)
            .iter()
            .map(shown)
            .collect();
        phases.join(", ")
    }

    #[test]
    fn reported_times_are_exact() {
        let mut record = streamed();
        record.wait_reports.mean_prefill = Some(ms(1));
        record.observed.engine_times = Some(EngineTimes {
            queue: Some(ms(40)),
            prefill: Some(ms(45)),
            decode: Some(ms(299)),
        });
        let expected = "gateway 8, front_end 0, queue 40, prefill 45, unexplained 5, decode 299";
        assert_eq!(shown(&record), expected);
    }

    #[test]
    fn waits_for_capacity_are_no_gateway_time() {
        let mut record = streamed();
        let accepted = record.timings.accepted;
        record.timings.queued = Some(at(accepted, 2));
        record.timings.dequeued = Some(at(accepted, 8));
        let shown = shown(&record);
        assert!(
            shown.starts_with("gateway_queue 6, gateway 2, front_end "),
            "{shown}"
        );
    }

    #[test]
    fn failed_attempts_are_no_gateway_time() {
        let mut record = streamed();
        let accepted = record.timings.accepted;
        let mut failed = record.attempts[0].clone();
        failed.started = at(accepted, 3);
        failed.ended = Some(at(accepted, 9));
        record.attempts.insert(0, failed);
        let shown = shown(&record);
        assert!(
            shown.starts_with("gateway 2, failed_attempts 6, front_end "),
            "{shown}"
        );
    }

    #[test]
    fn queue_evidence_makes_a_wait_queue_time() {
        // The fixture found four requests at the backend, of which three waited.
        for (running, queue, unexplained) in [(4.0, 30, 0), (5.0, 0, 30)] {
            let mut record = streamed();
            record.wait_reports.mean_prefill = Some(ms(10));
            record.wait_reports.running_while_queued = Some(running);
            let expected = format!(
                "gateway 8, front_end 50, queue ~{queue}, prefill ~10, unexplained ~{unexplained}, \
                 decode 300"
            );
            assert_eq!(shown(&record), expected, "{running} ran");
        }
    }

    #[test]
    fn unknown_waits_are_unexplained() {
        let mut record = streamed();
        record.decision = None;
        assert_eq!(
            shown(&record),
            "gateway 8, front_end 50, unexplained ~40, decode 300"
        );
        record.timings.sent = None;
        record.timings.first_output = None;
        assert_eq!(shown(&record), "");
    }

    #[test]
    fn a_prefill_without_queue_time_is_exact() {
        let mut record = streamed();
        record.wait_reports.running_while_queued = Some(5.0);
        record.observed.engine_times = Some(EngineTimes {
            prefill: Some(ms(25)),
            ..EngineTimes::default()
        });
        let expected = "gateway 8, front_end 50, queue ~0, prefill 25, unexplained ~15, decode 300";
        assert_eq!(shown(&record), expected);
    }

    #[test]
    fn whole_responses_have_reported_phases() {
        let mut record = streamed();
        record.timings.first_output = None;
        record.timings.last_output = None;
        record.observed.engine_times = Some(EngineTimes {
            queue: Some(ms(4)),
            prefill: Some(ms(5)),
            decode: Some(ms(6)),
        });
        assert_eq!(shown(&record), "gateway 8, queue 4, prefill 5, decode 6");
    }
}
