//! Decides which messages of a publisher of KV events are applied, and whether the known contents of the cache
//! can be trusted. It is a state machine without I/O: the subscriber calls it for each received message, and
//! performs the actions of the returned [`StreamStep`].
//!
//! In each process of an engine, the first message has the number 0, and the numbers increase by one. A
//! subscriber asks the replay endpoint for all messages from a given number on. The endpoint sends those that
//! it still has (the last 10,000 by default), and then an end mark. If the engine restarted while the
//! subscriber was not connected, the numbers begin again. After a reconnection, the subscriber therefore
//! requests the last applied message again: an unchanged payload proves that the process is the same.

use tokenweir_protocol::named_enum;

named_enum! {
    /// Whether the known contents of the prefix cache of an engine can be trusted. The states are in ascending
    /// order of trust.
    #[derive(Hash, Default)]
    pub enum StreamState {
        /// The subscriber has never been connected.
        #[default]
        Off = "off",
        /// Messages are missing, or may be missing: the connection is lost, no message has arrived on the new
        /// connection yet, or a replay is in progress.
        Gap = "gap",
        /// All messages since a moment after the start of the engine were applied. The blocks that the engine
        /// stored earlier are unknown.
        FromHere = "from_here",
        /// All messages since the start of the engine, or since its cache was cleared, were applied.
        Exact = "exact",
    }
}

/// The actions that the subscriber must take after a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use]
pub struct StreamStep {
    /// Whether to remove all blocks, before any other action.
    pub clears: bool,
    /// Whether to apply the message. If not, it was applied before or must wait for a replay.
    pub applies: bool,
    /// Number of the first message of the replay to request. `None`: request no replay.
    pub replay_from: Option<u64>,
}

/// Tracks the order of the messages of one publisher. It decides whether a message is applied, and when
/// a replay is requested.
#[derive(Debug, Default)]
pub struct EventStream {
    state: StreamState,
    has_replay: bool,
    phase: Phase,
    /// Number of the message that must come next. `None`: any message may come first.
    expected: Option<u64>,
    /// Digest of the payload of the last applied message.
    last_digest: u64,
    /// Number of the last message that was published, not replayed, on this connection.
    last_published: Option<u64>,
    after_replay: StreamState,
    /// The value of `expected` when the current replay was requested.
    asked_from: Option<u64>,
    /// Whether the publisher had already sent message `asked_from` or a later one when the replay was
    /// requested. If it had, the replay lacks message `asked_from` only if the publisher no longer has it.
    asked_late: bool,
    /// Number of requested replays whose end mark has not arrived. Only the last replay counts.
    pending_replays: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    /// Published messages are applied.
    #[default]
    Live,
    /// The subscriber has requested the last applied message again, to find out whether the publisher has
    /// restarted.
    Verifying,
    /// The publisher has restarted. The rest of the replay is ignored.
    Restarted,
    /// Replayed messages are applied.
    Replaying,
}

impl EventStream {
    /// Whether the known contents of the cache can be trusted.
    pub fn state(&self) -> StreamState {
        self.state
    }

    /// Records that the subscriber is connected. `has_replay`: whether the publisher has a replay endpoint.
    pub fn on_connect(&mut self, has_replay: bool) -> StreamStep {
        (self.has_replay, self.last_published, self.pending_replays) = (has_replay, None, 0);
        match self.expected {
            Some(expected) if has_replay && expected > 0 => {
                self.on_disconnect();
                (self.phase, self.asked_late) = (Phase::Verifying, false);
                self.ask(expected - 1)
            }
            _ => self.restart(),
        }
    }

    /// Records that the connection to the publisher was lost.
    pub fn on_disconnect(&mut self) {
        if matches!(self.state, StreamState::FromHere | StreamState::Exact) {
            (self.after_replay, self.state) = (self.state, StreamState::Gap);
        }
    }

    /// Records that a message could not be decoded or applied. The subscriber must clear the known contents.
    pub fn on_damage(&mut self) -> StreamStep {
        self.set_state(StreamState::FromHere);
        StreamStep {
            clears: true,
            ..StreamStep::default()
        }
    }

    /// Records that the engine emptied its cache. From now on, the contents of the cache are known.
    pub fn on_all_cleared(&mut self) {
        self.set_state(StreamState::Exact);
    }

    /// Records that no message arrived for some time. Requests a replay, because the last messages may have
    /// been lost. Without a replay, only the number of the next message would show the loss.
    pub fn on_idle(&mut self) -> StreamStep {
        match self.expected {
            Some(expected) if self.has_replay && self.phase == Phase::Live => self.ask(expected),
            _ => StreamStep::default(),
        }
    }

    /// Handles a published message. `digest`: a hash of its payload.
    pub fn on_published(&mut self, number: u64, digest: u64) -> StreamStep {
        let has_restarted = self.last_published.is_some_and(|last| number <= last);
        self.last_published = Some(number);
        if has_restarted {
            let step = self.restart();
            return if self.has_replay {
                step
            } else {
                StreamStep {
                    clears: true,
                    ..self.apply(number, digest)
                }
            };
        }
        if self.phase != Phase::Live {
            // The current replay should contain this message. If it ends without the message, another replay is
            // requested.
            return StreamStep::default();
        }
        match self.expected {
            Some(expected) if number > expected && self.has_replay => {
                self.after_replay = self.state;
                self.replay(Some(expected))
            }
            _ => self.apply(number, digest),
        }
    }

    /// Handles a replayed message. `digest`: a hash of its payload.
    pub fn on_replayed(&mut self, number: u64, digest: u64) -> StreamStep {
        match self.phase {
            // The replay was requested after an idle time. If it lacks a message, the number of the next
            // published message shows the gap.
            Phase::Live if self.expected == Some(number) => self.apply(number, digest),
            Phase::Live | Phase::Restarted => StreamStep::default(),
            Phase::Verifying => {
                let is_same = self.expected == Some(number + 1) && self.last_digest == digest;
                self.phase = if is_same {
                    Phase::Replaying
                } else {
                    Phase::Restarted
                };
                self.asked_from = self.expected;
                StreamStep::default()
            }
            Phase::Replaying => self.apply(number, digest),
        }
    }

    /// Handles the end mark of a replay.
    pub fn on_replay_end(&mut self) -> StreamStep {
        self.pending_replays = self.pending_replays.saturating_sub(1);
        match self.phase {
            _ if self.pending_replays > 0 => StreamStep::default(),
            Phase::Live => StreamStep::default(),
            Phase::Verifying | Phase::Restarted => self.restart(),
            Phase::Replaying => {
                let next = self.expected.unwrap_or(0);
                let is_behind = self.last_published.is_some_and(|last| last >= next);
                if is_behind && !(self.asked_late && self.expected == self.asked_from) {
                    return self.replay(self.expected);
                }
                self.phase = Phase::Live;
                if is_behind {
                    // The replay contained no message, so the publisher no longer has the missing messages.
                    self.state = StreamState::Gap;
                    self.expected = None;
                    return StreamStep {
                        clears: true,
                        ..StreamStep::default()
                    };
                }
                // A publisher without any message has just started, so the cache of its engine is empty.
                let is_new = self.expected.is_none();
                self.state = if is_new {
                    StreamState::Exact
                } else {
                    self.after_replay
                };
                self.expected = Some(next);
                StreamStep::default()
            }
        }
    }

    /// Clears the contents and requests all messages, because the publisher may have restarted.
    fn restart(&mut self) -> StreamStep {
        self.expected = None;
        self.after_replay = StreamState::FromHere;
        if self.has_replay {
            return StreamStep {
                clears: true,
                ..self.replay(None)
            };
        }
        (self.state, self.phase) = (StreamState::Gap, Phase::Live);
        StreamStep {
            clears: true,
            ..StreamStep::default()
        }
    }

    /// Requests a replay that begins with the message `from`.
    fn replay(&mut self, from: Option<u64>) -> StreamStep {
        (self.state, self.phase) = (StreamState::Gap, Phase::Replaying);
        self.asked_from = from;
        self.asked_late = self
            .last_published
            .is_some_and(|last| last >= from.unwrap_or(0));
        self.ask(from.unwrap_or(0))
    }

    fn ask(&mut self, from: u64) -> StreamStep {
        self.pending_replays += 1;
        StreamStep {
            replay_from: Some(from),
            ..StreamStep::default()
        }
    }

    /// Applies a message, unless it was applied before. If messages before it are missing, the contents are cleared
    /// first.
    fn apply(&mut self, number: u64, digest: u64) -> StreamStep {
        if self.expected.is_some_and(|expected| number < expected) {
            return StreamStep::default();
        }
        let clears = self.expected.is_some_and(|expected| number > expected);
        if self.expected != Some(number) {
            let is_start = number == 0;
            self.set_state(if is_start {
                StreamState::Exact
            } else {
                StreamState::FromHere
            });
        }
        self.expected = Some(number.saturating_add(1));
        self.last_digest = digest;
        StreamStep {
            clears,
            applies: true,
            replay_from: None,
        }
    }

    /// Sets the state that follows the current replay. Without a replay, this is the current state.
    fn set_state(&mut self, state: StreamState) {
        self.after_replay = state;
        if self.phase == Phase::Live {
            self.state = state;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn apply() -> StreamStep {
        StreamStep {
            applies: true,
            ..StreamStep::default()
        }
    }

    fn ask(from: u64) -> StreamStep {
        StreamStep {
            replay_from: Some(from),
            ..StreamStep::default()
        }
    }

    fn clearing(step: StreamStep) -> StreamStep {
        StreamStep {
            clears: true,
            ..step
        }
    }

    /// A stream in the state `Exact` after the messages 0 to 9.
    fn exact() -> EventStream {
        let mut stream = EventStream::default();
        assert_eq!(stream.on_connect(true), clearing(ask(0)));
        (0..10).for_each(|number| assert_eq!(stream.on_replayed(number, number), apply()));
        assert_eq!(stream.state(), StreamState::Gap);
        assert_eq!(stream.on_replay_end(), StreamStep::default());
        assert_eq!(stream.state(), StreamState::Exact);
        stream
    }

    #[test]
    fn without_replays_only_message_0_is_exact() {
        for (first, state) in [(0, StreamState::Exact), (7, StreamState::FromHere)] {
            let mut stream = EventStream::default();
            assert_eq!(stream.on_connect(false), clearing(StreamStep::default()));
            assert_eq!(stream.on_published(first, 0), apply());
            assert_eq!(stream.state(), state);
        }
    }

    #[test]
    fn missing_messages_are_requested() {
        let mut stream = exact();
        assert_eq!(stream.on_published(12, 12), ask(10));
        assert_eq!(stream.state(), StreamState::Gap);
        (10..13).for_each(|number| assert_eq!(stream.on_replayed(number, number), apply()));
        // The publisher sends this message after it has served the replay.
        assert_eq!(stream.on_published(13, 13), StreamStep::default());
        assert_eq!(stream.on_replay_end(), ask(13));
        assert_eq!(stream.on_replayed(13, 13), apply());
        assert_eq!(stream.on_replay_end(), StreamStep::default());
        assert_eq!(stream.state(), StreamState::Exact);
        assert_eq!(stream.on_published(14, 14), apply());
        assert_eq!(stream.state(), StreamState::Exact);
    }

    #[test]
    fn lost_messages_clear_the_contents() {
        let mut stream = exact();
        assert_eq!(stream.on_published(40, 40), ask(10));
        assert_eq!(stream.on_replayed(30, 30), clearing(apply()));
        (31..=40).for_each(|number| assert_eq!(stream.on_replayed(number, number), apply()));
        assert_eq!(stream.on_replay_end(), StreamStep::default());
        assert_eq!(stream.state(), StreamState::FromHere);
        // The engine clears its cache, so the contents of the cache are known again.
        assert_eq!(stream.on_published(41, 41), apply());
        stream.on_all_cleared();
        assert_eq!(stream.state(), StreamState::Exact);
    }

    #[test]
    fn an_empty_replay_is_not_repeated() {
        let mut stream = exact();
        assert_eq!(stream.on_published(12, 12), ask(10));
        assert_eq!(stream.on_replay_end(), clearing(StreamStep::default()));
        assert_eq!(stream.on_published(13, 13), apply());
        assert_eq!(stream.state(), StreamState::FromHere);
    }

    #[test]
    fn an_equal_last_message_proves_the_same_process() {
        let mut stream = exact();
        stream.on_disconnect();
        assert_eq!(stream.state(), StreamState::Gap);
        assert_eq!(stream.on_connect(true), ask(9));
        assert_eq!(stream.on_replayed(9, 9), StreamStep::default());
        assert_eq!(stream.on_replayed(10, 10), apply());
        assert_eq!(stream.on_replay_end(), StreamStep::default());
        assert_eq!(stream.state(), StreamState::Exact);
    }

    #[test]
    fn a_restart_clears_contents_and_requests_all() {
        for other in [None, Some(9)] {
            let mut stream = exact();
            stream.on_disconnect();
            assert_eq!(stream.on_connect(true), ask(9));
            if let Some(number) = other {
                assert_eq!(stream.on_replayed(number, 999), StreamStep::default());
                assert_eq!(stream.on_replayed(10, 10), StreamStep::default());
            }
            assert_eq!(stream.on_replay_end(), clearing(ask(0)));
            assert_eq!(stream.on_replayed(0, 0), apply());
            assert_eq!(stream.on_replay_end(), StreamStep::default());
            assert_eq!(stream.state(), StreamState::Exact);
        }
    }

    #[test]
    fn without_any_message_contents_are_exact() {
        let mut stream = EventStream::default();
        assert_eq!(stream.on_connect(true), clearing(ask(0)));
        assert_eq!(stream.on_replay_end(), StreamStep::default());
        assert_eq!(stream.state(), StreamState::Exact);
        assert_eq!(stream.on_published(0, 0), apply());
        assert_eq!(stream.state(), StreamState::Exact);
    }

    #[test]
    fn an_idle_stream_requests_a_lost_last_message() {
        let mut stream = exact();
        assert_eq!(stream.on_idle(), ask(10));
        assert_eq!(stream.on_replayed(10, 10), apply());
        // Messages are lost again while the replay is under way.
        assert_eq!(stream.on_published(13, 13), ask(11));
        assert_eq!(
            stream.on_replay_end(),
            StreamStep::default(),
            "the end of the first replay"
        );
        (11..14).for_each(|number| assert_eq!(stream.on_replayed(number, number), apply()));
        assert_eq!(stream.on_replay_end(), StreamStep::default());
        assert_eq!(stream.state(), StreamState::Exact);
        let mut without_replay = EventStream::default();
        let _ = without_replay.on_connect(false);
        let _ = without_replay.on_published(0, 0);
        assert_eq!(without_replay.on_idle(), StreamStep::default());
    }

    /// A publisher, its lossy connection to a subscriber, and what the subscriber applied.
    #[derive(Debug)]
    struct Model {
        stream: EventStream,
        has_replay: bool,
        process: u64,
        /// Digests of all messages that the current process of the publisher has sent.
        messages: Vec<u64>,
        buffered: usize,
        is_connected: bool,
        /// Replayed messages that the subscriber has not received yet. `None`: the end mark.
        replay: VecDeque<Option<(u64, u64)>>,
        /// Digests of the messages that the subscriber applied since it last cleared the contents.
        applied: Vec<u64>,
    }

    impl Model {
        fn act(&mut self, step: StreamStep, digest: u64) {
            if step.clears {
                self.applied.clear();
            }
            if step.applies {
                self.applied.push(digest);
            }
            if let Some(from) = step.replay_from {
                let first = (from as usize).max(self.messages.len().saturating_sub(self.buffered));
                let numbered = (first..self.messages.len()).map(|n| (n as u64, self.messages[n]));
                self.replay.extend(numbered.map(Some).chain([None]));
            }
        }

        fn deliver_replay(&mut self) {
            let step = match self.replay.pop_front() {
                None => return,
                Some(Some((number, digest))) => (self.stream.on_replayed(number, digest), digest),
                Some(None) => (self.stream.on_replay_end(), 0),
            };
            self.act(step.0, step.1);
        }

        fn run(&mut self, operation: u8) {
            match operation {
                0..=5 => {
                    let digest = self.process << 32 | self.messages.len() as u64;
                    self.messages.push(digest);
                    // Operation 0, one in six, loses its message.
                    if self.is_connected && operation > 0 {
                        let number = self.messages.len() as u64 - 1;
                        let step = self.stream.on_published(number, digest);
                        self.act(step, digest);
                    }
                }
                6 | 7 => self.deliver_replay(),
                9 => {
                    if self.is_connected {
                        let step = self.stream.on_idle();
                        self.act(step, 0);
                    }
                }
                8 if self.is_connected => {
                    self.is_connected = false;
                    self.replay.clear();
                    self.stream.on_disconnect();
                }
                8 => {
                    self.is_connected = true;
                    let step = self.stream.on_connect(self.has_replay);
                    self.act(step, 0);
                }
                _ => {
                    if self.is_connected {
                        self.run(8);
                    }
                    self.process += 1;
                    self.messages.clear();
                }
            }
        }
    }

    proptest! {
        #[test]
        fn exact_means_all_messages_applied_in_order(
            operations in proptest::collection::vec(0_u8..11, 0..400),
            has_replay: bool,
            buffered in 1_usize..60,
        ) {
            let mut model = Model {
                stream: EventStream::default(), has_replay, process: 1, messages: Vec::new(),
                buffered, is_connected: false, replay: VecDeque::new(), applied: Vec::new(),
            };
            for operation in operations {
                model.run(operation);
                let received = model.stream.expected.unwrap_or(0) as usize;
                if model.stream.state() == StreamState::Exact {
                    prop_assert!(model.is_connected);
                    prop_assert_eq!(&model.applied[..], &model.messages[..received]);
                }
                if model.stream.state() == StreamState::FromHere {
                    prop_assert!(model.messages[..received].ends_with(&model.applied));
                }
            }
            // At the end, the subscriber reconnects, and the stream recovers.
            if !model.is_connected {
                model.run(8);
            }
            model.run(1);
            while !model.replay.is_empty() {
                model.deliver_replay();
            }
            model.run(1);
            while !model.replay.is_empty() {
                model.deliver_replay();
            }
            let state = model.stream.state();
            prop_assert!(matches!(state, StreamState::Exact | StreamState::FromHere), "{:?}", state);
            prop_assert_eq!(model.applied.last(), model.messages.last());
        }
    }
}
