//! Traffics whose kind is drawn at random: how much their prompts share, their lengths, turns, pauses and bursts.
//! The ranges are wide, and each quantity is distributed evenly on a logarithmic scale.

use super::{Generator, Lognormal, Segment, TurnLengths};
use std::time::Duration;
use tokenweir_sim::text::mix;

/// The parameters of a drawn traffic.
struct DrawnSessions {
    /// The texts with which prompts begin: at each level, one of some texts.
    levels: Vec<SharedTexts>,
    /// The new prompt tokens and the output of a turn, and the pause before it.
    turn: TurnLengths,
    /// Mean number of turns of a session. 1: each session is one request.
    turns: f64,
    /// Number of requests with one prompt that come at once. 0: there are no such bursts.
    burst: usize,
    /// Number of LoRA adapters, of which each session uses one. 0: all use the base model.
    adapters: u32,
}

struct SharedTexts {
    /// Identity of the level.
    kind: u64,
    count: u32,
    tokens: f64,
}

/// Share of the sessions that are bursts, if there are bursts.
const BURST_SHARE: f64 = 0.01;
/// Every fifth traffic has adapters, from [`FIRST_WITH_ADAPTERS`] on. Earlier results are about traffics
/// without adapters.
const ADAPTERS_EVERY: u32 = 5;
const FIRST_WITH_ADAPTERS: u32 = 30;
/// Maximum number of turns of a session.
const MAX_TURNS: usize = 40;
/// The kind of the texts that stand for adapters.
const ADAPTER_KIND: u64 = 30;
/// Spread of the lengths and pauses, as the standard deviation of their logarithms.
const SIGMA: f64 = 0.8;

impl DrawnSessions {
    fn new(number: u32) -> Self {
        let seed = mix(0x64_72_61_77_6e, u64::from(number));
        let mut random = fastrand::Rng::with_seed(seed);
        let mut between = |least: f64, most: f64| least * (most / least).powf(random.f64());
        let mut levels = Vec::new();
        for level in 0..2 {
            let count = between(2.0, 4_000.0) as u32;
            let tokens = between(100.0, 10_000.0);
            // A quarter of the traffics shares nothing, and a third of the others has two levels.
            if between(1.0, 100.0) > [3.2, 21.5][level] && levels.len() == level {
                let kind = mix(seed, level as u64);
                levels.push(SharedTexts {
                    kind,
                    count,
                    tokens,
                });
            }
        }
        let lognormal = |median| Lognormal {
            median,
            sigma: SIGMA,
        };
        let turn = TurnLengths {
            input: lognormal(between(40.0, 5_000.0)),
            output: lognormal(between(10.0, 800.0)),
            pause: lognormal(between(0.5, 30.0)),
        };
        let turns = (between(0.1, 20.0)).max(1.0);
        let burst = if between(1.0, 100.0) > 31.6 {
            between(10.0, 100.0) as usize
        } else {
            0
        };
        let adapters = between(4.0, 60.0) as u32;
        let has_adapters = number >= FIRST_WITH_ADAPTERS && number.is_multiple_of(ADAPTERS_EVERY);
        Self {
            levels,
            turn,
            turns,
            burst,
            adapters: if has_adapters { adapters } else { 0 },
        }
    }
}

impl Generator {
    /// Adds the requests of one session of a drawn traffic.
    pub(super) fn drawn(&mut self, number: u32, at: Duration) {
        let sessions = DrawnSessions::new(number);
        let mut shared: Vec<Segment> = Vec::new();
        self.adapter = None;
        if sessions.adapters > 0 {
            let adapter = self.popular(sessions.adapters) as u32;
            self.adapter = Some(adapter);
            // Blocks of one text differ between adapters.
            shared.push(Self::shared_segment(ADAPTER_KIND, adapter.into(), 1.0, 0.0));
        }
        for level in &sessions.levels {
            let index = self.popular(level.count);
            shared.push(Self::shared_segment(level.kind, index, level.tokens, 0.5));
        }
        let TurnLengths { input, output, .. } = sessions.turn;
        if sessions.burst > 0 && self.random.f64() < BURST_SHARE {
            let common = self.random_segment(2_000.0, SIGMA);
            shared.push(common);
            for _ in 0..sessions.burst {
                self.single(at, &shared, input, output);
            }
            return;
        }
        let turns = self.turns(sessions.turns, MAX_TURNS);
        self.turn_taking(at, shared, turns, sessions.turn);
    }
}
