//! What came of the requests so far, in memory that does not grow with them.

use super::histogram::Histogram;
use super::measure::{Answer, Measured};
use super::samples::Samples;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tokenweir_lab::score::Objectives;

/// What happened so far.
#[derive(Debug)]
pub struct Tally {
    objectives: Objectives,
    /// How requests ended.
    pub counts: Counts,
    /// From intended: to the first output, to the end.
    pub ttft: Histogram,
    /// Intended → end.
    pub e2e: Histogram,
    /// From sent: to the first output.
    pub service_ttft: Histogram,
    /// Sent → end.
    pub service_e2e: Histogram,
    /// Between events with output.
    pub gaps: Histogram,
    /// Per output token after the first.
    pub tpot: Histogram,
    /// Intended → sent, of those for which there was a place.
    pub late: Histogram,
    /// How much later than asked for the generator woke up.
    pub wakes: Histogram,
    /// Single requests.
    pub samples: Samples,
    /// Over time.
    pub course: Course,
    /// Those that took longest to their first output.
    pub slowest: Vec<Slow>,
    failed_in_a_row: u64,
}

/// How requests ended, and their tokens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// Answered whole, or until the client left as the trace says.
    pub served: u64,
    /// Of those, by clients that left.
    pub left: u64,
    /// Those that failed.
    pub failed: u64,
    /// The same by kind.
    pub failures: BTreeMap<String, u64>,
    /// Sent or due, and not ended when the run was.
    pub unfinished: u64,
    /// There was no place for them in the generator when they were due.
    pub waited: u64,
    /// Served within the objectives.
    pub good: u64,
    /// Tokens of prompts of those served.
    pub input_tokens: u64,
    /// Of those, from a prefix cache.
    pub cached_tokens: u64,
    /// Answers that told how much was cached.
    pub told_cached: u64,
    /// Tokens of answers.
    pub output_tokens: u64,
    /// Answers whose tokens nobody counted: each event with output is one.
    pub uncounted: u64,
}

/// A request that took long.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Slow {
    /// Its place in the plan.
    pub number: u64,
    /// When it was intended, in seconds from the beginning.
    pub at: f64,
    /// Intended → first output, in seconds.
    pub ttft: f64,
}

/// How it went, in equal slots of time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Course {
    /// Seconds in a slot.
    pub width: f64,
    /// From the beginning on.
    pub slots: Vec<Slot>,
}

/// What happened in a slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Slot {
    /// Answers that ended.
    pub served: f64,
    /// Requests that failed.
    pub failed: f64,
    /// Output tokens, spread evenly from the first output of each answer to its last.
    pub tokens: f64,
}

/// How a server says that it is full.
const FULL: [&str; 2] = ["status_429", "status_503"];
/// Requests that are named as the slowest.
const SLOWEST: usize = 5;
/// Slots, before they are made twice as wide.
const SLOTS: usize = 120;

// === impl Tally ===

impl Tally {
    /// Nothing yet.
    pub fn new(objectives: Objectives) -> Self {
        Self {
            objectives,
            counts: Counts::default(),
            ttft: Histogram::default(),
            e2e: Histogram::default(),
            service_ttft: Histogram::default(),
            service_e2e: Histogram::default(),
            gaps: Histogram::default(),
            tpot: Histogram::default(),
            late: Histogram::default(),
            wakes: Histogram::default(),
            samples: Samples::default(),
            course: Course::default(),
            slowest: Vec::new(),
            failed_in_a_row: 0,
        }
    }

    /// What good service is.
    pub fn objectives(&self) -> Objectives {
        self.objectives
    }

    /// Requests that failed since the last one that did not.
    pub fn failed_in_a_row(&self) -> u64 {
        self.failed_in_a_row
    }

    /// A request has ended.
    pub fn add(&mut self, measured: &Measured) {
        self.counts.waited += u64::from(measured.has_waited);
        if !measured.has_waited {
            self.late.add(measured.late());
        }
        self.samples.add(measured, &self.objectives);
        match &measured.result {
            Ok(answer) => self.add_answer(measured, answer),
            Err(failure) => {
                // A server that turns requests away is full, not gone.
                self.failed_in_a_row += u64::from(!FULL.contains(&&*failure.kind));
                self.counts.failed += 1;
                *self.counts.failures.entry(failure.kind.clone().into_owned()).or_default() += 1;
                self.course.at(measured.ended.as_secs_f64()).failed += 1.0;
            }
        }
    }

    /// A request has ended by a defect of ours.
    pub fn add_defect(&mut self) {
        self.counts.failed += 1;
        *self.counts.failures.entry("defect".to_owned()).or_default() += 1;
    }

    fn add_answer(&mut self, measured: &Measured, answer: &Answer) {
        self.failed_in_a_row = 0;
        let counts = &mut self.counts;
        counts.served += 1;
        counts.left += u64::from(answer.has_left);
        counts.good += u64::from(measured.is_good(&self.objectives));
        counts.input_tokens += u64::from(answer.input);
        counts.cached_tokens += u64::from(answer.cached.unwrap_or(0));
        counts.told_cached += u64::from(answer.cached.is_some());
        counts.output_tokens += u64::from(answer.output);
        counts.uncounted += u64::from(!answer.is_counted);
        let [due, sent, ended] =
            [measured.due, measured.sent, measured.ended].map(|at| at.as_secs_f64());
        self.service_ttft.add(answer.ttft);
        self.ttft.add(measured.late() + answer.ttft);
        if !answer.has_left {
            self.service_e2e.add(ended - sent);
            self.e2e.add(ended - due);
        }
        answer.gaps.iter().for_each(|gap| self.gaps.add(*gap));
        answer.tpot().into_iter().for_each(|tpot| self.tpot.add(tpot));
        let first = sent + answer.ttft;
        self.course.at(ended).served += 1.0;
        self.course.spread(f64::from(answer.output), first, first + answer.decode);
        let ttft = measured.late() + answer.ttft;
        self.slowest.push(Slow { number: measured.number, at: due, ttft });
        self.slowest.sort_by(|a, b| b.ttft.total_cmp(&a.ttft));
        self.slowest.truncate(SLOWEST);
    }
}

// === impl Course ===

impl Default for Course {
    fn default() -> Self {
        Self { width: 1.0, slots: Vec::new() }
    }
}

impl Course {
    /// The slot of a time.
    fn at(&mut self, seconds: f64) -> &mut Slot {
        while seconds >= self.width * SLOTS as f64 {
            self.width *= 2.0;
            let add = |pair: &[Slot]| {
                pair.iter().fold(Slot::default(), |sum, slot| Slot {
                    served: sum.served + slot.served,
                    failed: sum.failed + slot.failed,
                    tokens: sum.tokens + slot.tokens,
                })
            };
            self.slots = self.slots.chunks(2).map(add).collect();
        }
        let slot = (seconds.max(0.0) / self.width) as usize;
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, Slot::default());
        }
        &mut self.slots[slot]
    }

    /// Shares tokens out over the slots between two times.
    fn spread(&mut self, tokens: f64, from: f64, to: f64) {
        self.at(to);
        let (width, length) = (self.width, to - from);
        if length < width / 10.0 {
            self.at(to).tokens += tokens;
            return;
        }
        let mut begin = from;
        while begin < to {
            let end = (((begin / width).floor() + 1.0) * width).min(to);
            // A step that rounding swallows would never end.
            let end = if end > begin { end } else { to };
            self.at(begin).tokens += tokens * (end - begin) / length;
            begin = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn answer(ttft: f64, output: u32) -> Answer {
        Answer {
            ttft,
            decode: 1.0,
            gaps: vec![0.1; 10],
            input: 10,
            cached: None,
            output,
            is_counted: true,
            has_left: false,
        }
    }

    fn measured(number: u64, due: u64, sent: u64, ttft: f64) -> Measured {
        Measured {
            number,
            due: Duration::from_millis(due),
            sent: Duration::from_millis(sent),
            ended: Duration::from_millis(sent) + Duration::from_secs_f64(ttft + 1.0),
            has_waited: false,
            result: Ok(answer(ttft, 11)),
        }
    }

    fn tally() -> Tally {
        Tally::new(Objectives { ttft: 1.0, tpot: 0.2 })
    }

    #[test]
    fn latency_counts_from_when_a_request_was_intended_and_service_from_when_it_was_sent() {
        let mut tally = tally();
        tally.add(&measured(0, 1_000, 3_000, 0.5));
        assert!((tally.ttft.quantile(0.5) - 2.5).abs() < 0.01);
        assert!((tally.service_ttft.quantile(0.5) - 0.5).abs() < 0.01);
        assert!((tally.e2e.quantile(0.5) - 3.5).abs() < 0.01);
        assert!((tally.service_e2e.quantile(0.5) - 1.5).abs() < 0.01);
        assert_eq!(tally.counts.good, 0, "2.5 s is over the objective, 0.5 s is not what counts");
    }

    #[test]
    fn failures_are_counted_by_kind_and_those_in_a_row_until_one_is_served() {
        let mut tally = tally();
        let failed = Measured { result: Err("truncated".into()), ..measured(0, 0, 0, 0.0) };
        tally.add(&failed);
        tally.add(&failed);
        assert_eq!((tally.failed_in_a_row(), tally.counts.failures["truncated"]), (2, 2));
        tally.add(&Measured { result: Err("status_429".into()), ..failed });
        assert_eq!(tally.failed_in_a_row(), 2, "it is full, not gone");
        tally.add(&measured(2, 0, 0, 0.1));
        assert_eq!((tally.failed_in_a_row(), tally.counts.failed), (0, 3));
    }

    #[test]
    fn a_long_run_keeps_a_bounded_number_of_samples_and_slots_and_loses_no_token() {
        let mut tally = tally();
        for number in 0..20_000 {
            tally.add(&measured(number, number * 50, number * 50, 0.3));
        }
        let samples = tally.samples.sorted();
        assert!((2_000..=4_096).contains(&samples.requests.len()), "{}", samples.requests.len());
        assert!(
            samples
                .requests
                .windows(2)
                .all(|pair| pair[1].number - pair[0].number == samples.every)
        );
        assert!(tally.course.slots.len() <= SLOTS);
        let tokens: f64 = tally.course.slots.iter().map(|slot| slot.tokens).sum();
        assert!((tokens - 220_000.0).abs() < 1e-3, "{tokens}");
        assert_eq!(tally.slowest.len(), SLOWEST);
    }
}
