//! The signals of the history, and the request counts that the gateway reports for them.

use tokenweir_engine::dialect::EngineLoad;

/// Declares the signals. Each row names a signal and the value that it is read from.
macro_rules! signals {
    (
        observed { $($(#[$observed_doc:meta])* $observed:ident,)+ }
        counters { $($counter:ident = $load:ident,)+ }
        gauges { $($(#[$gauge_doc:meta])+ $gauge:ident = $gauge_field:ident: $gauge_type:ident,)+ }
        fields { $($(#[$field_doc:meta])+ $plain:ident: $plain_type:ty,)+ }
        counts { $($(#[$doc:meta])+ $count:ident = $field:ident: $type:ident,)+ }
    ) => {
        /// A value of a step of the history. [`HistoryStep`](super::step::HistoryStep) has one of each.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum StepSignal {
            $($(#[$observed_doc])* $observed,)+
            $($counter,)+
            $($(#[$gauge_doc])+ $gauge,)+
            $($(#[$doc])+ $count,)+
        }

        impl StepSignal {
            pub(super) const COUNT: usize = [
                $(stringify!($observed),)+ $(stringify!($counter),)+ $(stringify!($gauge),)+
                $(stringify!($count),)+
            ].len();

            /// The signals that are the growth of a counter of the metrics page, each with the function that
            /// reads the counter.
            pub(super) const COUNTERS: &[LoadCounter] = &[$((Self::$counter, |load| load.$load),)+];
        }

        /// The observations of the gateway about a backend.
        #[derive(Debug, Clone, Copy, Default, PartialEq)]
        pub struct GatewayObservations {
            $($(#[$gauge_doc])+ pub $gauge_field: $gauge_type,)+
            $($(#[$field_doc])+ pub $plain: $plain_type,)+
        }

        impl GatewayObservations {
            /// Calls `set` with the value of each gauge.
            #[expect(clippy::cast_lossless, reason = "the types of the gauges differ")]
            pub(super) fn each(&self, mut set: impl FnMut(StepSignal, f64)) {
                $(set(StepSignal::$gauge, self.$gauge_field as f64);)+
            }
        }

        /// Counts of the gateway's requests at a backend in one interval. Times are sums in seconds.
        #[derive(Debug, Clone, Copy, Default, PartialEq)]
        pub struct BackendRequestCounts {
            $($(#[$doc])+ pub $field: $type,)+
        }

        impl BackendRequestCounts {
            pub(super) fn each(&self, mut set: impl FnMut(StepSignal, f64)) {
                $(set(StepSignal::$count, self.$field as f64);)+
            }
        }
    };
}

/// A signal whose value is the growth of a counter of the metrics page, and the function that reads the
/// counter.
type LoadCounter = (StepSignal, fn(&EngineLoad) -> Option<f64>);

signals! {
    observed {
        /// Share of the KV cache that requests occupy.
        KvUsage,
        Waiting,
        /// Number of requests that run in the engine.
        Running,
        /// Number of the waiting requests that wait for a LoRA adapter, a KV transfer or another temporary
        /// constraint.
        Deferred,
        /// Seconds from the previous metrics page to the page of this sample. Unknown if one of the two pages is
        /// missing or the backend process restarted.
        Elapsed,
        /// Number of requests of this gateway at the backend.
        InFlight,
        /// Number of stalls that began since the previous sample.
        Stalls,
        /// The p99 of the times between outputs, in seconds.
        GapP99,
        /// Number of times since the previous sample that a metrics page came from another engine than the page
        /// before.
        EngineSwitches,
        /// The longest time to fetch a metrics page, in seconds.
        PageSeconds,
        /// Mean utilisation of the GPUs, 0 to 1.
        GpuUtilization,
        /// 1 if a GPU lowers its clock because of a fault, else 0.
        GpuThrottled,
        /// Temperature of the hottest GPU, in degrees Celsius.
        GpuTemperature,
    }
    counters {
        Preemptions = preemptions,
        PrefixQueries = prefix_queries,
        PrefixHits = prefix_hits,
        PromptTokens = prompt_tokens,
        GenerationTokens = generation_tokens,
        QueueSeconds = queue_seconds,
        Queued = queued,
        PrefillSeconds = prefill_seconds,
        Prefilled = prefilled,
        FirstTokenSeconds = first_token_seconds,
        FirstTokens = first_tokens,
        InterTokenSeconds = gap_seconds,
        Gaps = gaps,
        DraftTokens = draft_tokens,
        AcceptedTokens = accepted_tokens,
    }
    gauges {
        /// Number of streams of the backend that are stalled now.
        Stalled = stalled: u32,
        /// Number of streams at the backend without a first output.
        Pending = pending: u32,
        /// Number of prompt tokens that the engine has to compute for the streams without a
        /// first output.
        PendingTokens = pending_tokens: u64,
        /// Number of tokens that the requests in flight may have in the KV cache.
        HeldTokens = held_tokens: u64,
        /// Time in seconds for which the oldest request without output has been overdue while no other request
        /// got output.
        Overdue = overdue_seconds: f64,
        /// Time in seconds since the first canary request without an answer, if nothing has shown since then
        /// that the backend works. 0: no such request.
        Canary = canary_seconds: f64,
        /// Number of attempts to open a connection since the previous sample.
        Connects = connects: u64,
        /// Sum of the times of these attempts, in seconds.
        ConnectSeconds = connect_seconds: f64,
        /// Number of new connections that got a response head since the previous sample.
        FirstHeads = first_heads: u64,
        /// Sum of the times from the connection attempt to the response head, in seconds.
        FirstHeadSeconds = first_head_seconds: f64,
        /// Number of streams without output whose response began long ago.
        Hanging = hanging: u32,
        /// Age of the oldest such stream, in seconds.
        HangingSeconds = hanging_seconds: f64,
    }
    fields {
        /// Number of requests of this gateway at the backend now.
        in_flight: u32,
        /// Number of stalls of streams of the backend since the start of the gateway.
        stalls: u64,
        /// The recent p99 of the times between outputs, in seconds. `None`: too few outputs.
        gap_p99: Option<f64>,
        /// A hash of the names of the models of the backend. Only backends with equal hashes are compared.
        models: u64,
        /// The current weight: the share of the requests relative to other backends.
        weight: u32,
        /// Maximum number of sequences that the engine has run at once since its start, as far as known.
        most_running: u32,
        /// Number of times since the backend joined that a metrics page came from another engine than the page
        /// before.
        engine_switches: u64,
        /// Whether the gateway was paused or lacked CPU time meanwhile. Its times then show nothing about the
        /// backend.
        is_disturbed: bool,
        /// The longest time to fetch a metrics page since the previous sample, in seconds. `None`: none was
        /// fetched.
        page_seconds: Option<f64>,
        /// Counts since the previous sample.
        counts: BackendRequestCounts,
    }
    counts {
        /// Number of streams that had their first output.
        FirstOutputs = first_outputs: u64,
        /// Sum of the times from sending the request to the backend to the first output of these streams, in
        /// seconds.
        FirstOutputSeconds = first_output_seconds: f64,
        /// Number of first outputs that took longer than [`SLOW_START`](super::SLOW_START) seconds.
        SlowFirstOutputs = slow_first_outputs: u64,
        /// Number of ended requests with a response head.
        Heads = heads: u64,
        /// Sum of the times from sending the request to the response head, in seconds.
        HeadSeconds = head_seconds: f64,
        /// Number of ended streams with output whose prompt has media.
        MediaOutputs = media_outputs: u64,
        /// Sum of the times to the first output of streams whose prompt has media, in seconds.
        MediaSeconds = media_seconds: f64,
        /// Number of ended streams with output that is structured.
        StructuredOutputs = structured_outputs: u64,
        /// Sum of the times to the first output of streams with structured output, in seconds.
        StructuredSeconds = structured_seconds: f64,
        /// Number of ended streams with output whose prompt is long.
        LongOutputs = long_outputs: u64,
        /// Sum of the times to the first output of streams with a long prompt, in seconds.
        LongSeconds = long_seconds: f64,
        /// Number of all other ended streams that had output.
        PlainOutputs = plain_outputs: u64,
        /// Sum of the times to the first output of all other ended streams, in seconds.
        PlainSeconds = plain_seconds: f64,
        /// Number of output tokens of ended streams.
        StreamTokens = stream_tokens: u64,
        /// Number of events with output in ended streams.
        StreamEvents = stream_events: u64,
        /// Number of times at which output of ended streams arrived.
        StreamArrivals = stream_arrivals: u64,
        /// Number of requests that ended.
        Finished = finished: u64,
        /// Number of ended requests whose response was a stream.
        Streams = streams: u64,
        /// Number of ended requests whose client disconnected before the response was complete.
        Cancelled = cancelled: u64,
        /// Sum of the durations of the cancelled requests, in seconds.
        CancelSeconds = cancel_seconds: f64,
        /// Sum of the squares of the durations of the cancelled requests, in seconds squared, for their
        /// standard deviation.
        CancelSecondsSquared = cancel_squares: f64,
        /// Number of prompt tokens of the ended requests, as estimated for the routing decision.
        GatewayPromptTokens = prompt_tokens: f64,
        /// Number of prompt tokens that were predicted to be in the prefix cache of at least one
        /// backend.
        ReusableTokens = reusable_tokens: f64,
        /// Number of prompt tokens that were predicted to be in the prefix cache of this backend.
        ReusableHereTokens = reusable_here_tokens: f64,
        /// Number of prompt tokens that an earlier prompt of the last 30 to 60 seconds also contained.
        KnownTokens = known_tokens: f64,
        /// Length of the longest prompt, in tokens.
        LongestPrompt = longest_prompt: f64,
        /// Number of attempts that the backend answered with a status of 4xx.
        RefusedAttempts = refused_attempts: u64,
        /// Number of ended requests with output tokens.
        Generated = generated: u64,
        /// Number of ended requests whose response was complete.
        Served = served: u64,
        /// Sum of the durations of the requests with a complete response, in seconds.
        ServedSeconds = served_seconds: f64,
        /// Number of output tokens of the requests with a complete response.
        ServedTokens = served_tokens: u64,
        /// Number of ended streams whose tokens arrived all at once.
        Buffered = buffered: u64,
        /// Sum of the square roots of the numbers of output tokens of requests with a complete response.
        ServedRoots = served_roots: f64,
        /// Number of ended streams with at least 32 pieces of text.
        Texts = texts: u64,
        /// Number of such streams that repeat a few pieces.
        RepetitiveTexts = repetitive_texts: u64,
        /// Sum over these streams of the number of different pieces among the first 32.
        DistinctPieces = distinct_pieces: f64,
        /// Sum of the squares of the numbers of different pieces.
        DistinctSquares = distinct_squares: f64,
        /// Sum over these streams of the mean length of the first 32 pieces, in bytes.
        PieceBytes = piece_bytes: f64,
        /// Sum of the squares of the mean lengths of pieces.
        PieceBytesSquares = piece_bytes_squares: f64,
        /// Sum over these streams of the share of bytes outside ASCII in the first 32 pieces.
        NonAscii = non_ascii: f64,
        /// Sum of the squares of the shares of bytes outside ASCII.
        NonAsciiSquares = non_ascii_squares: f64,
        /// Number of complete responses with text.
        SampledTexts = sampled_texts: u64,
        /// Number of complete responses whose text contains replacement or control characters.
        DamagedTexts = damaged_texts: u64,
        /// Number of answers to requests with tools.
        ToolAnswers = tool_answers: u64,
        /// Number of answers to requests with tools that contain a tool call.
        ToolCalls = tool_calls: u64,
        /// Number of answers to requests with tools that are a text which begins like a tool call.
        TextsLikeCalls = texts_like_calls: u64,
        /// Number of answers to requests that ask for JSON.
        JsonAnswers = json_answers: u64,
        /// Number of answers to requests for JSON that are not JSON.
        MissingJson = missing_json: u64,
        /// Number of responses whose content contradicts their token counts.
        WrongUsages = wrong_usages: u64,
        /// Number of responses that the engine ended without an error.
        Responses = responses: u64,
        /// Number of these responses without an answer, or with a single token.
        EmptyResponses = empty_responses: u64,
        /// Number of these responses that contain only reasoning.
        ReasoningAlone = reasoning_alone: u64,
        /// Number of these responses that are useless to clients: empty, unreadable, or not the requested JSON.
        UselessResponses = useless_responses: u64,
        /// Number of these responses that end at the maximum number of tokens.
        CutResponses = cut_responses: u64,
    }
}
