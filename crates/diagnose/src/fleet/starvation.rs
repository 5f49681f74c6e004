//! The rule about a gateway that gets too little CPU time or is paused.

use super::observation::{CpuSupply, RecentStarts};
use crate::debounce::VerdictDebounce;
use crate::recent::Recent;
use crate::rule::prelude::*;

use std::time::{Duration, Instant};

/// Minimum mean delay of a timer, in seconds, at which the gateway lacks CPU time. Normal delays are below 5
/// ms.
const LATE_SECONDS: f64 = 0.04;
/// Minimum mean delay of a timer, in seconds, for a verdict if the CPU limit stops the process for
/// [`THROTTLED_SHARE`] of the time.
const LATE_SECONDS_IF_THROTTLED: f64 = 0.01;
/// Minimum share of the time in which the CPU limit stops the process.
const THROTTLED_SHARE: f64 = 0.2;
/// Minimum share of the time in which processes of the machine wait for a CPU, for the cause that the machine
/// is too busy.
const BUSY_SHARE: f64 = 0.3;
/// Minimum number of timers between two evaluations for a usable mean.
const MIN_TIMERS: u64 = 3;
/// Time after which a pause of the process no longer counts.
const PAUSE_WINDOW: Duration = Duration::from_mins(2);
/// Minimum number of pauses for a verdict, and then the length in seconds from which a single pause is enough.
const MIN_PAUSES: u64 = 2;
const LONG_PAUSE_SECONDS: f64 = 2.0;
/// Minimum jump of the wall clock against the monotonic clock, in seconds, for a pause that only the wall clock
/// shows: the machine was suspended, or its time was set.
const CLOCK_STEP_SECONDS: f64 = 2.0;

/// Time after a pause in which times that the gateway measures are unusable.
const DISTURBED_FOR: Duration = Duration::from_secs(9);

pub(super) static GATEWAY_STARVED: DiagnosisRule = DiagnosisRule {
    name: "gateway_starved",
    severity: "warning, critical if it was killed twice",
    meaning: "The gateway gets too little CPU time, stands still, or is killed and started again. Its times are lower bounds: its clock begins when it reads a \
              request, and clients wait before that.",
    evidence: "In two of three evaluations, the timers of the runtime were 40 ms late on average; or 10 ms, \
               while the CPU limit stopped the process for 20 % of the time. Or in two minutes the whole process \
               stood still twice for 0.7 s or more, or once for 2 s: punctual timers between late ones, or a wall clock that jumps. \
               Or in the last ten minutes a process of this gateway ended without its last step. Without a folder for its \
               state (`timeline.file`, STATE_DIRECTORY, RUNTIME_DIRECTORY or a folder for temporary files) earlier starts are unknown.",
    remedy: "Raise the CPU limit of the gateway (resources.limits.cpu, CPUQuota=) or remove it, or move other \
             processes to another machine.",
    disproof: "tokenweir_scheduling_delay_seconds is below 5 ms.",
    ..DiagnosisRule::GATEWAY
};

/// The state of the rule between two evaluations.
#[derive(Debug, Default)]
pub(super) struct Starvation {
    debounce: VerdictDebounce,
    /// The CPU supply and the time of the last evaluation. `None`: no evaluation yet.
    last: Option<(CpuSupply, Instant)>,
    /// The observation of the last evaluation that found the condition.
    found: Observation,
    /// The pauses of the last two minutes, the oldest first.
    pauses: Recent<Pauses>,
    /// The time of the last evaluation that found a pause or too little CPU time.
    disturbed_at: Option<Instant>,
}

/// The pauses of the whole process between two evaluations.
#[derive(Debug, Clone, Copy)]
struct Pauses {
    count: u64,
    longest_seconds: f64,
    /// Whether only the wall clock shows the pauses.
    is_clock_step: bool,
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

/// The verdict about a gateway that was killed and started again. `None`: earlier processes ended cleanly, or
/// are unknown.
pub(super) fn killed(starts: &RecentStarts) -> Option<Verdict> {
    let RecentStarts {
        age_seconds,
        starts,
        unclean_ends,
    } = *starts;
    let severity = match unclean_ends {
        0 => return None,
        1 => VerdictSeverity::Warning,
        _ => VerdictSeverity::Critical,
    };
    let cause = format!(
        "the gateway itself was killed: it started {age_seconds:.0} s ago, {starts} starts in 10 \
         min, {unclean_ends} of the processes before did not end cleanly; all open requests \
         ended with them"
    );
    let evidence = Evidence::new("unclean_ends", unclean_ends as f64, "processes", 600.0);
    let found = GATEWAY_STARVED.verdict(severity).because(cause);
    Some(
        found
            .remedy(
                "Look for the reason of the kills: the memory limit of its container (OOMKilled, \
                 dmesg), a liveness probe, the supervisor (systemctl status, kubectl describe \
                 pod), its node.",
            )
            .with([evidence]),
    )
}

impl Starvation {
    /// The verdict of the rule, if its condition holds at `now`.
    pub(super) fn judge(&mut self, cpu: &CpuSupply, now: Instant) -> Option<Verdict> {
        let (before, at) = self.last.replace((*cpu, now))?;
        let seconds = now.saturating_duration_since(at).as_secs_f64().max(1e-3);
        let observed = Observation::between(&before, cpu, seconds);
        let is_found = observed.is_some_and(Observation::is_starved);
        self.note_pauses(&before, cpu, seconds, now);
        let has_paused = self.pauses.times().next_back() == Some(now);
        if is_found || has_paused {
            self.disturbed_at = Some(now);
        }
        self.debounce.update(is_found, now);
        let verdict = GATEWAY_STARVED.verdict(VerdictSeverity::Warning);
        if let Some(cause) = self.pause_cause() {
            let seconds = PAUSE_WINDOW.as_secs_f64();
            let longest = Evidence::new("longest_pause", self.longest_pause(), "s", seconds);
            let verdict = verdict.because(cause).remedy(
                "Look at the machine of the gateway: steal time, snapshots and live migrations \
                 of its VM, swapping (swapoff, a memory limit), a debugger, a cgroup freezer.",
            );
            return Some(verdict.with([longest]));
        }
        if is_found && let Some(observed) = observed {
            self.found = observed;
        }
        self.debounce.since()?;
        let found = self.found;
        let evidence = |measure, value, unit| Evidence::new(measure, value, unit, seconds);
        Some(verdict.because(found.cause()).with([
            evidence("scheduling_delay_mean", found.late_seconds, "s"),
            evidence("cpu_throttled", found.throttled_share, "ratio"),
            evidence("cpu_waiting", found.waiting_share, "ratio"),
        ]))
    }

    /// Whether the times that the gateway measured since the last evaluation show nothing about backends,
    /// because the gateway was paused or lacked CPU time recently.
    pub(super) fn is_disturbed(&self, now: Instant) -> bool {
        let is_recent = |at| now.saturating_duration_since(at) < DISTURBED_FOR;
        self.disturbed_at.is_some_and(is_recent)
    }

    fn note_pauses(&mut self, before: &CpuSupply, after: &CpuSupply, seconds: f64, now: Instant) {
        self.pauses.forget(PAUSE_WINDOW, now);
        let count = after.pauses.saturating_sub(before.pauses);
        let step = after.wall_seconds - before.wall_seconds - seconds;
        let is_clock_step = before.wall_seconds > 0.0 && step >= CLOCK_STEP_SECONDS;
        let pauses = Pauses {
            count: count.max(1),
            longest_seconds: if count > 0 {
                after.longest_pause_seconds
            } else {
                step
            },
            is_clock_step: count == 0,
        };
        if count > 0 || is_clock_step {
            self.pauses.add(pauses, now);
        }
    }

    fn longest_pause(&self) -> f64 {
        let seconds = self.pauses.iter().map(|pauses| pauses.longest_seconds);
        seconds.fold(0.0, f64::max)
    }

    /// The cause as text, if the process was paused often or long enough.
    fn pause_cause(&self) -> Option<String> {
        let count: u64 = self.pauses.iter().map(|pauses| pauses.count).sum();
        let longest = self.longest_pause();
        if count < MIN_PAUSES && longest < LONG_PAUSE_SECONDS {
            return None;
        }
        let why = if self.pauses.iter().all(|pauses| pauses.is_clock_step) {
            "the machine was suspended, or its time was set"
        } else {
            "its process or its machine was stopped (a snapshot, a migration, swapping, SIGSTOP)"
        };
        let times = if count == 1 {
            "once".to_owned()
        } else {
            format!("{count} times")
        };
        Some(format!(
            "it stood still {times} in two minutes, for up to {longest:.1} s: {why}; backends \
             are not to blame"
        ))
    }
}

impl Observation {
    /// The CPU supply between two observations, without pauses of the whole process. `None`: too few timers
    /// fired.
    fn between(before: &CpuSupply, after: &CpuSupply, seconds: f64) -> Option<Self> {
        let timers = after.timers.saturating_sub(before.timers);
        if timers < MIN_TIMERS {
            return None;
        }
        let late = after.late_seconds - before.late_seconds;
        let paused = after.pause_seconds - before.pause_seconds;
        let throttled = match (before.throttled_seconds, after.throttled_seconds) {
            (Some(before), Some(after)) => (after - before).max(0.0),
            _ => 0.0,
        };
        Some(Self {
            late_seconds: (late - paused).max(0.0) / timers as f64,
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

    /// Runs evaluations with 40 timers each, given the mean delay of the timers in milliseconds and the share
    /// of the time in which the CPU limit stopped the process. Returns the cause after each evaluation.
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
    fn pauses_are_no_lack_of_cpu() {
        let mut rule = Starvation::default();
        let mut cpu = CpuSupply::default();
        let mut now = clock::epoch();
        let mut judge = |cpu: &mut CpuSupply, pause: f64, step: f64| {
            now += Duration::from_secs(5);
            cpu.timers += 40;
            cpu.wall_seconds += 5.0 + step;
            cpu.longest_pause_seconds = pause;
            if pause > 0.0 {
                cpu.pauses += 1;
                cpu.pause_seconds += pause;
                cpu.late_seconds += pause;
            }
            let found = rule.judge(cpu, now);
            let cause = found.and_then(|found| found.cause).unwrap_or_default();
            (cause.into_owned(), rule.is_disturbed(now))
        };
        cpu.wall_seconds = 1e9;
        assert_eq!(judge(&mut cpu, 0.0, 0.0), (String::new(), false));
        assert_eq!(
            judge(&mut cpu, 1.0, 0.0),
            (String::new(), true),
            "a single pause is short"
        );
        assert!(judge(&mut cpu, 0.0, 0.0).1, "requests of that time end now");
        assert!(!judge(&mut cpu, 0.0, 0.0).1);
        let cause = judge(&mut cpu, 3.0, 0.0).0;
        assert!(
            cause.starts_with("it stood still 2 times in two minutes, for up to 3.0 s"),
            "{cause}"
        );
        for _ in 0..24 {
            judge(&mut cpu, 0.0, 0.0);
        }
        let cause = judge(&mut cpu, 0.0, 30.0).0;
        assert!(
            cause.contains("once") && cause.contains("suspended"),
            "{cause}"
        );
    }

    #[test]
    fn punctual_timers_on_busy_machines_cause_no_verdict() {
        assert_eq!(causes(&[(4.0, 0.9); 6]), vec![None; 6]);
        assert_eq!(causes(&[(20.0, 0.0); 6]), vec![None; 6]);
    }
}
