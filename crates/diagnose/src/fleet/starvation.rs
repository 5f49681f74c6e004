//! The rule about a gateway that gets too little CPU time.

use super::observation::CpuSupply;
use crate::debounce::VerdictDebounce;
use crate::verdict::{Evidence, Verdict, VerdictDescription, VerdictScope, VerdictSeverity};
use std::time::Instant;

/// Minimum mean delay of a timer, in seconds, at which the gateway lacks CPU time. Usual delays are below 5 ms.
const LATE_SECONDS: f64 = 0.04;
/// The same if the CPU limit stops the process for [`THROTTLED_SHARE`] of the time.
const LATE_SECONDS_IF_THROTTLED: f64 = 0.01;
/// Minimum share of the time in which the CPU limit stops the process.
const THROTTLED_SHARE: f64 = 0.2;
/// Minimum share of the time in which a process of the machine waits for a CPU, for a machine that is too busy.
const BUSY_SHARE: f64 = 0.3;
/// Minimum number of timers between two evaluations for a mean.
const MIN_TIMERS: u64 = 3;

pub(super) static GATEWAY_STARVED: VerdictDescription = VerdictDescription {
    name: "gateway_starved",
    scope: VerdictScope::Gateway,
    is_about_state: true,
    severity: "warning",
    meaning: "The gateway gets too little CPU time. Its times are lower bounds: its clock begins when it reads a \
              request, and clients wait before that.",
    evidence: "In two of three evaluations, the timers of the runtime were 40 ms late on average; or 10 ms, \
               while the CPU limit stopped the process for 20 % of the time.",
    excluded: "",
    remedy: "Raise the CPU limit of the gateway (resources.limits.cpu, CPUQuota=) or remove it, or move other \
             processes to another machine.",
    disproof: "tokenweir_scheduling_delay_seconds is below 5 ms.",
    pages: false,
};

/// The state of the rule between two evaluations.
#[derive(Debug, Default)]
pub(super) struct Starvation {
    debounce: VerdictDebounce,
    /// The CPU supply and the time of the last evaluation. `None`: no evaluation yet.
    last: Option<(CpuSupply, Instant)>,
    /// What the last evaluation that found the condition observed.
    found: Observation,
}

/// The CPU time between two evaluations.
#[derive(Debug, Clone, Copy, Default)]
struct Observation {
    /// Mean delay of a timer, in seconds.
    late_seconds: f64,
    /// Share of the time in which the CPU limit stopped the process.
    throttled_share: f64,
    /// Share of the time in which a process of the machine waited for a CPU.
    waiting_share: f64,
}

impl Starvation {
    /// The verdict of the rule, if its condition holds at `now`.
    pub(super) fn judge(&mut self, cpu: &CpuSupply, now: Instant) -> Option<Verdict> {
        let (before, at) = self.last.replace((*cpu, now))?;
        let seconds = now.saturating_duration_since(at).as_secs_f64().max(1e-3);
        let observed = Observation::between(&before, cpu, seconds);
        let is_found = observed.is_some_and(Observation::is_starved);
        self.debounce.update(is_found, now);
        if is_found && let Some(observed) = observed {
            self.found = observed;
        }
        self.debounce.since()?;
        let found = self.found;
        let evidence = |measure, value, unit| Evidence::new(measure, value, unit, seconds);
        Some(Verdict {
            evidence: vec![
                evidence("scheduling_delay_mean", found.late_seconds, "s"),
                evidence("cpu_throttled", found.throttled_share, "ratio"),
                evidence("cpu_waiting", found.waiting_share, "ratio"),
            ],
            ..GATEWAY_STARVED.verdict(VerdictSeverity::Warning, Some(found.cause()))
        })
    }
}

impl Observation {
    /// `None`: too few timers fired.
    fn between(before: &CpuSupply, after: &CpuSupply, seconds: f64) -> Option<Self> {
        let timers = after.timers.saturating_sub(before.timers);
        if timers < MIN_TIMERS {
            return None;
        }
        let throttled = match (before.throttled_seconds, after.throttled_seconds) {
            (Some(before), Some(after)) => (after - before).max(0.0),
            _ => 0.0,
        };
        Some(Self {
            late_seconds: (after.late_seconds - before.late_seconds).max(0.0) / timers as f64,
            throttled_share: (throttled / seconds).min(1.0),
            waiting_share: after.waiting_share.unwrap_or(0.0),
        })
    }

    fn is_starved(self) -> bool {
        let is_throttled = self.throttled_share >= THROTTLED_SHARE;
        let limit = if is_throttled {
            LATE_SECONDS_IF_THROTTLED
        } else {
            LATE_SECONDS
        };
        self.late_seconds >= limit
    }

    fn cause(self) -> String {
        let late = 1e3 * self.late_seconds;
        let why = if self.throttled_share >= THROTTLED_SHARE {
            let share = 100.0 * self.throttled_share;
            format!("its CPU limit stops it for {share:.0} % of the time")
        } else if self.waiting_share >= BUSY_SHARE {
            "other processes of the machine take the CPU".to_owned()
        } else {
            "its threads do not run: it is stopped, or its CPU limit is too low".to_owned()
        };
        format!("{why}; its timers are {late:.0} ms late on average")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokenweir_protocol::clock;

    /// Plays evaluations in each of which 40 timers were late by so many milliseconds on average, and the CPU
    /// limit stopped the process for this share of the time. Returns the cause after each.
    fn causes(steps: &[(f64, f64)]) -> Vec<Option<String>> {
        let mut rule = Starvation::default();
        let mut cpu = CpuSupply {
            throttled_seconds: Some(0.0),
            ..CpuSupply::default()
        };
        let mut now = clock::epoch();
        rule.judge(&cpu, now);
        let mut causes = Vec::new();
        for (late_millis, throttled_share) in steps {
            now += Duration::from_secs(5);
            cpu.timers += 40;
            cpu.late_seconds += 40.0 * late_millis / 1e3;
            cpu.throttled_seconds = cpu.throttled_seconds.map(|it| it + 5.0 * throttled_share);
            let found = rule.judge(&cpu, now);
            causes.push(found.and_then(|it| it.cause).map(Into::into));
        }
        causes
    }

    #[test]
    fn late_timers_are_named_after_10_seconds() {
        let seen = causes(&[(150.0, 0.0), (150.0, 0.0)]);
        assert_eq!(seen[0], None, "a single pause is no evidence");
        let cause = "its threads do not run: it is stopped, or its CPU limit is too low; its timers are \
                     150 ms late on average";
        assert_eq!(seen[1].as_deref(), Some(cause));
    }

    #[test]
    fn a_throttling_cpu_limit_is_the_cause() {
        let seen = causes(&[(15.0, 0.6); 2]);
        let cause =
            "its CPU limit stops it for 60 % of the time; its timers are 15 ms late on average";
        assert_eq!(seen[1].as_deref(), Some(cause));
        assert_eq!(causes(&[(15.0, 0.1); 6]), vec![None; 6]);
    }

    #[test]
    fn a_busy_machine_with_punctual_timers_is_well() {
        assert_eq!(causes(&[(4.0, 0.9); 6]), vec![None; 6]);
        assert_eq!(causes(&[(20.0, 0.0); 6]), vec![None; 6]);
    }
}
