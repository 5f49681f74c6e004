//! Metrics of closed-loop sessions. In such a session, the client sends each turn some time after the end of
//! the previous turn.

use super::results::{LatencyObjectives, ServedRequest, jain_index, mean_of};
use super::trace::{TraceRequest, followers};
use serde::Serialize;
use tokenweir_protocol::histogram::sample_quantile;

/// Metrics of the sessions with at least two turns.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SessionMetrics {
    /// Share, from 0 to 1, of the sessions whose turns were all served within both objectives.
    pub goodput: f64,
    /// Median time to first token of the turns from [`LATE_TURN`] on, in seconds.
    pub late_ttft_p50: f64,
    /// 99th percentile of the times to first token of the turns from [`LATE_TURN`] on, in seconds.
    pub late_ttft_p99: f64,
    /// 99th percentile of the total wait of a session, the sum of the times to first token of its served turns, in
    /// seconds.
    pub wait_p99: f64,
    /// Share, from 0 to 1, of the prompt tokens of the turns from [`LATE_TURN`] on that came from a prefix
    /// cache.
    pub late_cached: f64,
    /// Jain's index of fairness over the mean time to first token of each session: (Σ x)² ÷ (n · Σ x²). 1:
    /// all sessions have the same mean; 1/n: one of n sessions waits and the others do not. R. Jain, D. Chiu,
    /// W. Hawe, "A Quantitative Measure of Fairness", 1984.
    pub fairness: f64,
}

/// The first turn that counts as late. The first turn of a session is 1.
pub const LATE_TURN: usize = 5;

/// Counts of the requests (turns) of one session.
#[derive(Debug, Default)]
struct SessionTurns {
    turns: usize,
    good: usize,
    served: usize,
    ttft_sum: f64,
}

#[derive(Debug, Default)]
struct LateTurns {
    ttfts: Vec<f64>,
    /// Sums over these turns: prompt tokens, and prompt tokens from a prefix cache.
    prompt: f64,
    cached: f64,
}

impl LateTurns {
    fn add(&mut self, request: &ServedRequest) {
        self.ttfts.push(request.ttft);
        self.prompt += f64::from(request.prompt);
        self.cached += f64::from(request.cached);
    }
}

/// The place of a request in the closed-loop sessions.
#[derive(Debug, Clone, Copy)]
struct TurnPlace {
    session: usize,
    turn: usize,
}

/// The place of each request. `None`: the request is in no closed-loop session.
fn turn_places(requests: &[TraceRequest]) -> Vec<Option<TurnPlace>> {
    let followers = followers(requests);
    let mut places: Vec<Option<TurnPlace>> = Vec::with_capacity(requests.len());
    let mut sessions = 0;
    for (number, request) in requests.iter().enumerate() {
        places.push(match request.after {
            // The request before a turn always has a lower index.
            Some(previous) => places[previous].map(|place| TurnPlace {
                turn: place.turn + 1,
                ..place
            }),
            None if followers[number].is_empty() => None,
            None => {
                sessions += 1;
                Some(TurnPlace {
                    session: sessions - 1,
                    turn: 1,
                })
            }
        });
    }
    places
}

impl SessionMetrics {
    /// The metrics of a run. `None`: no request of a session with at least two turns was served.
    pub fn new(
        requests: &[TraceRequest],
        served: &[ServedRequest],
        objectives: &LatencyObjectives,
    ) -> Option<Self> {
        let places = turn_places(requests);
        let session_count = places.iter().flatten().map(|place| place.session + 1).max();
        let mut sessions = Vec::new();
        sessions.resize_with(session_count.unwrap_or(0), SessionTurns::default);
        for place in places.iter().flatten() {
            sessions[place.session].turns += 1;
        }
        let mut late = LateTurns::default();
        for request in served {
            let Some(place) = places[request.request] else {
                continue;
            };
            let session = &mut sessions[place.session];
            session.served += 1;
            session.good += usize::from(objectives.is_met_by(request));
            session.ttft_sum += request.ttft;
            if place.turn >= LATE_TURN {
                late.add(request);
            }
        }
        let served = sessions.iter().filter(|session| session.served > 0);
        let means = served
            .clone()
            .map(|turns| turns.ttft_sum / turns.served as f64);
        let means: Vec<f64> = means.collect();
        let mut waits: Vec<f64> = served.map(|turns| turns.ttft_sum).collect();
        let is_good = |session: &&SessionTurns| session.good == session.turns;
        (!means.is_empty()).then(|| Self {
            goodput: sessions.iter().filter(is_good).count() as f64 / sessions.len() as f64,
            late_ttft_p50: sample_quantile(&mut late.ttfts, 0.5).unwrap_or(0.0),
            late_ttft_p99: sample_quantile(&mut late.ttfts, 0.99).unwrap_or(0.0),
            wait_p99: sample_quantile(&mut waits, 0.99).unwrap_or(0.0),
            late_cached: late.cached / late.prompt.max(1.0),
            fairness: jain_index(means.iter().copied()),
        })
    }

    /// The mean of each metric over several runs. `None`: no run has sessions.
    pub fn mean(runs: &[Self]) -> Option<Self> {
        let mean = |read: fn(&Self) -> f64| mean_of(runs, read);
        (!runs.is_empty()).then(|| Self {
            goodput: mean(|run| run.goodput),
            late_ttft_p50: mean(|run| run.late_ttft_p50),
            late_ttft_p99: mean(|run| run.late_ttft_p99),
            wait_p99: mean(|run| run.wait_p99),
            late_cached: mean(|run| run.late_cached),
            fairness: mean(|run| run.fairness),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECTIVES: LatencyObjectives = LatencyObjectives::new(2.0, 0.1);

    fn add_session(requests: &mut Vec<TraceRequest>, turns: usize) {
        for turn in 0..turns {
            let after = (turn > 0).then(|| requests.len() - 1);
            requests.push(TraceRequest {
                after,
                ..TraceRequest::default()
            });
        }
    }

    fn served(request: usize, ttft: f64, cached: u32) -> ServedRequest {
        ServedRequest {
            request,
            ttft,
            cached,
            prompt: 100,
            output: 1,
            ..Default::default()
        }
    }

    #[test]
    fn all_good_turns_make_a_good_session() {
        let mut requests = Vec::new();
        add_session(&mut requests, 6);
        add_session(&mut requests, 2);
        let mut all: Vec<ServedRequest> = (0..8).map(|number| served(number, 1.0, 0)).collect();
        (all[4], all[5]) = (served(4, 0.5, 80), served(5, 3.0, 40));
        let metrics = SessionMetrics::new(&requests, &all, &OBJECTIVES).unwrap();
        assert!((metrics.goodput - 0.5).abs() < 1e-9, "{metrics:?}");
        assert!((metrics.late_ttft_p99 - 3.0).abs() < 1e-9, "{metrics:?}");
        assert!((metrics.wait_p99 - 7.5).abs() < 1e-9, "{metrics:?}");
        assert!((metrics.late_cached - 0.6).abs() < 1e-9, "{metrics:?}");
    }

    #[test]
    fn an_unserved_turn_makes_no_good_session() {
        let mut requests = Vec::new();
        add_session(&mut requests, 2);
        let metrics = SessionMetrics::new(&requests, &[served(0, 1.0, 0)], &OBJECTIVES).unwrap();
        assert!(metrics.goodput <= 0.0, "{metrics:?}");
    }

    #[test]
    fn fairness_is_a_half_if_one_waits() {
        let mut requests = Vec::new();
        add_session(&mut requests, 2);
        add_session(&mut requests, 2);
        let fairness = |ttfts: [f64; 4]| {
            let all = ttfts.into_iter().enumerate();
            let all: Vec<_> = all.map(|(number, ttft)| served(number, ttft, 0)).collect();
            SessionMetrics::new(&requests, &all, &OBJECTIVES)
                .unwrap()
                .fairness
        };
        assert!((fairness([1.0, 3.0, 2.0, 2.0]) - 1.0).abs() < 1e-9);
        assert!((fairness([1.0, 3.0, 0.0, 0.0]) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn independent_requests_do_not_count_as_sessions() {
        let requests = vec![TraceRequest::default(); 3];
        let all: Vec<ServedRequest> = (0..3).map(|number| served(number, 1.0, 0)).collect();
        assert_eq!(SessionMetrics::new(&requests, &all, &OBJECTIVES), None);
    }
}
