//! The sessions of each kind of traffic.

use super::{Generator, Lognormal, Segment, Traffic, TrafficShape, TurnLengths};
use std::time::Duration;

/// If the history of an agent has more tokens than this, the agent replaces the history by a summary.
const COMPACTED_TOKENS: f64 = 50_000.0;

const fn lognormal(median: f64, sigma: f64) -> Lognormal {
    Lognormal { median, sigma }
}

impl Generator {
    /// Adds the requests of one session that starts at the time `at`.
    pub(super) fn session(&mut self, traffic: Traffic, at: Duration) {
        match traffic {
            Traffic::Named(shape) => self.named(shape, at),
            Traffic::Drawn(number) => self.drawn(number, at),
        }
    }

    fn named(&mut self, shape: TrafficShape, at: Duration) {
        match shape {
            TrafficShape::Chat => {
                self.single(at, &[], lognormal(1_020.0, 1.0), lognormal(129.0, 0.86));
            }
            TrafficShape::Reasoning => {
                self.single(at, &[], lognormal(208.0, 1.2), lognormal(792.0, 0.97));
            }
            TrafficShape::Completion => {
                self.single(at, &[], lognormal(1_469.0, 1.0), lognormal(13.0, 0.85));
            }
            TrafficShape::SystemPrompts => {
                let system = Self::shared_segment(11, self.popular(60), 2_500.0, 0.7);
                self.single(at, &[system], lognormal(200.0, 0.8), lognormal(150.0, 0.8));
            }
            TrafficShape::Retrieval => self.retrieval(at),
            TrafficShape::Conversation => self.conversation(at),
            TrafficShape::Agents => self.agents(at),
            TrafficShape::Mixed => {
                let part = if self.random.bool() {
                    TrafficShape::Agents
                } else {
                    TrafficShape::Chat
                };
                self.named(part, at);
            }
            TrafficShape::RankedDocuments => self.ranked_documents(at),
            TrafficShape::Tenants => {
                self.tenant = self.popular(900);
                let examples = Self::shared_segment(18, self.tenant, 1_500.0, 0.3);
                self.single(at, &[examples], lognormal(120.0, 0.6), lognormal(30.0, 0.7));
            }
            TrafficShape::LongDocuments => self.long_documents(at),
            TrafficShape::Batches => self.batch(at),
            TrafficShape::FastTools => self.fast_tools(at),
            TrafficShape::SubAgents => self.sub_agents(at),
        }
    }

    fn conversation(&mut self, at: Duration) {
        let system = Self::shared_segment(14, self.popular(8), 300.0, 0.5);
        let turns = self.turns(5.0, 30);
        let lengths = TurnLengths {
            input: lognormal(250.0, 1.3),
            output: lognormal(200.0, 0.8),
            pause: lognormal(12.0, 0.8),
        };
        self.turn_taking(at, vec![system], turns, lengths);
    }

    fn agents(&mut self, at: Duration) {
        let system = Self::shared_segment(15, self.popular(12), 6_000.0, 0.5);
        let turns = self.turns(12.0, 50);
        let lengths = TurnLengths {
            input: lognormal(700.0, 1.0),
            output: lognormal(90.0, 0.9),
            pause: lognormal(3.0, 1.2),
        };
        self.turn_taking(at, vec![system], turns, lengths);
    }

    fn fast_tools(&mut self, at: Duration) {
        let system = Self::shared_segment(19, self.popular(20), 3_000.0, 0.4);
        let turns = self.turns(25.0, 40);
        let lengths = TurnLengths {
            input: lognormal(350.0, 1.0),
            output: lognormal(70.0, 0.7),
            pause: lognormal(0.6, 0.7),
        };
        self.turn_taking(at, vec![system], turns, lengths);
    }

    /// Adds the session of an agent. After about one of five turns, three sub-agents start at once with the
    /// agent's history and take up to three turns each. The agent goes on after the third sub-agent has
    /// ended.
    fn sub_agents(&mut self, at: Duration) {
        let system = Self::shared_segment(17, self.popular(6), 14_000.0, 0.2);
        let mut history = vec![system];
        let mut previous = None;
        for _ in 0..self.turns(10.0, 30) {
            if history.iter().map(|segment| segment.tokens).sum::<f64>() > COMPACTED_TOKENS {
                history = vec![system, self.new_segment(2_000.0)];
            }
            history.push(self.random_segment(900.0, 1.0));
            let pause = Duration::from_secs_f64(self.lognormal(4.0, 0.8));
            let output = self.lognormal(120.0, 0.8);
            let answer = self.push(&history, output, previous.map_or(at, |_| pause), previous);
            history.push(answer);
            let parent = self.requests.len() - 1;
            previous = Some(parent);
            if self.random.f64() < 0.2 {
                for _ in 0..3 {
                    previous = Some(self.sub_agent(history.clone(), parent));
                }
                history.push(self.new_segment(600.0));
            }
        }
    }

    /// Adds the turns of a sub-agent that starts after the request `previous`. Returns the number of its last
    /// request.
    fn sub_agent(&mut self, mut history: Vec<Segment>, mut previous: usize) -> usize {
        for _ in 0..self.random.usize(1..=3) {
            history.push(self.random_segment(500.0, 0.8));
            let output = self.lognormal(150.0, 0.8);
            let answer = self.push(&history, output, Duration::from_secs(1), Some(previous));
            history.push(answer);
            previous = self.requests.len() - 1;
        }
        previous
    }

    /// Adds a request with the first two to eight documents of a topic's ranking, always in the same order.
    fn ranked_documents(&mut self, at: Duration) {
        let topic = self.popular(150);
        let mut segments = vec![Self::shared_segment(16, 0, 300.0, 0.0)];
        for rank in 0..self.random.u64(2..=8) {
            segments.push(Self::shared_segment(20 + rank, topic, 1_100.0, 0.3));
        }
        self.single(at, &segments, lognormal(70.0, 0.7), lognormal(160.0, 0.6));
    }

    /// Adds an independent question, or up to four questions about a long document.
    fn long_documents(&mut self, at: Duration) {
        if self.random.f64() >= 0.05 {
            return self.single(at, &[], lognormal(900.0, 0.9), lognormal(150.0, 0.8));
        }
        let tokens = 40_000.0 + 70_000.0 * self.random.f64();
        let document = self.new_segment(tokens);
        let mut previous = None;
        for turn in 0..self.random.usize(1..=4) {
            let question = self.random_segment(80.0, 0.6);
            let output = self.lognormal(200.0, 0.6);
            let pause = Duration::from_secs_f64(-15.0 * (1.0 - self.random.f64()).ln());
            self.push(
                &[document, question],
                output,
                if turn == 0 { at } else { pause },
                previous,
            );
            previous = Some(self.requests.len() - 1);
        }
    }

    /// Adds an independent question, or sixty simultaneous requests that share a prompt.
    fn batch(&mut self, at: Duration) {
        if self.random.f64() >= 0.012 {
            return self.single(at, &[], lognormal(900.0, 0.9), lognormal(150.0, 0.8));
        }
        let common = self.random_segment(4_000.0, 0.4);
        for _ in 0..60 {
            self.single(at, &[common], lognormal(150.0, 0.5), lognormal(60.0, 0.6));
        }
    }

    /// Adds a request whose prompt has a system prompt, two to five shared documents and a question.
    fn retrieval(&mut self, at: Duration) {
        let mut segments = vec![Self::shared_segment(12, 0, 400.0, 0.0)];
        for _ in 0..self.random.u64(2..=5) {
            segments.push(Self::shared_segment(13, self.popular(3_000), 900.0, 0.4));
        }
        self.single(at, &segments, lognormal(60.0, 0.6), lognormal(200.0, 0.6));
    }
}
