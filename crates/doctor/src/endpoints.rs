//! The paths of vLLM that are not for everybody who reaches its port: what each does, and what
//! opens it. They were read in vLLM 0.32 and 0.33. `/inference/v1/generate` and the paths that render
//! prompts are not here: vLLM registers them also where they are disabled, so `OPTIONS` tells nothing.

use super::finding::Severity;

/// Paths that one setting opens.
pub(super) struct Group {
    /// What they are, as the subject of a sentence.
    pub(super) what: &'static str,
    /// The paths.
    pub(super) paths: &'static [&'static str],
    /// How bad it is that they are open.
    pub(super) severity: Severity,
    /// What somebody can do with them.
    pub(super) danger: &'static str,
    /// What closes them.
    pub(super) close: &'static str,
}

/// Those that act on the server or tell what is in it.
pub(super) const GROUPS: [Group; 8] = [
    Group {
        what: "developer mode",
        paths: &[
            "/collective_rpc",
            "/sleep",
            "/wake_up",
            "/release_kv_cache_memory",
            "/reset_prefix_cache",
            "/reset_mm_cache",
            "/reset_encoder_cache",
            "/is_sleeping",
            "/server_info",
            "/pause",
            "/resume",
            "/is_paused",
            "/get_world_size",
            "/init_weight_transfer_engine",
            "/shutdown_weight_transfer_engine",
            "/start_weight_update",
            "/start_draft_weight_update",
            "/update_weights",
            "/finish_weight_update",
            "/update_weight_version",
            "/weight_info",
            "/weight_checker",
        ],
        severity: Severity::Error,
        danger: "Whoever reaches this port can run methods in the workers, put the engine to \
                 sleep, pause it, empty its caches or change its weights; --api-key does not \
                 guard these paths.",
        close: "start vLLM without VLLM_SERVER_DEV_MODE=1, or let only the gateway reach its port",
    },
    Group {
        what: "aborting requests",
        paths: &["/abort_requests"],
        severity: Severity::Warning,
        danger: "Whoever reaches this port can abort requests of others; --api-key does not guard \
                 this path.",
        close: "start vLLM without --tokens-only and without VLLM_SERVER_DEV_MODE=1",
    },
    Group {
        what: "loading LoRA adapters",
        paths: &["/v1/load_lora_adapter", "/v1/unload_lora_adapter"],
        severity: Severity::Warning,
        danger: "Whoever may send requests can load weights from any path or take adapters away.",
        close: "start vLLM without VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, or let only the gateway \
                reach its port: it does not forward these paths",
    },
    Group {
        what: "the profiler",
        paths: &["/start_profile", "/stop_profile"],
        severity: Severity::Warning,
        danger: "A profile slows every request and fills the disk; --api-key does not guard these \
                 paths.",
        close: "start vLLM without --profiler-config",
    },
    Group {
        what: "fault tolerance",
        paths: &["/fault_tolerance/apply", "/fault_tolerance/status"],
        severity: Severity::Warning,
        danger: "Whoever reaches this port can take engines out of service.",
        close: "start vLLM without --enable-fault-tolerance, or let only the gateway reach its \
                port",
    },
    Group {
        what: "elastic expert parallelism",
        paths: &["/scale_elastic_ep", "/is_scaling_elastic_ep"],
        severity: Severity::Note,
        danger: "vLLM always serves it, without a key: where engines are scaled with it, whoever \
                 reaches this port can scale them.",
        close: "let only the gateway reach the port of vLLM: it does not forward this path",
    },
    Group {
        what: "the tokenizer and its chat template",
        paths: &["/tokenizer_info"],
        severity: Severity::Note,
        danger: "The chat template may hold what is not for clients.",
        close: "start vLLM without --enable-tokenizer-info-endpoint",
    },
    Group {
        what: "the documentation of all paths",
        paths: &["/openapi.json", "/docs"],
        severity: Severity::Note,
        danger: "It shows a stranger what to try.",
        close: "start vLLM with --disable-fastapi-docs",
    },
];

/// Those that use the engine and that a key of vLLM does not guard.
pub(super) const UNGUARDED: [&str; 8] = [
    "/invocations",
    "/tokenize",
    "/detokenize",
    "/pooling",
    "/classify",
    "/score",
    "/rerank",
    "/generative_scoring",
];

/// All of them.
pub(super) fn paths() -> impl Iterator<Item = &'static str> {
    GROUPS.iter().flat_map(|group| group.paths).copied().chain(UNGUARDED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;
    use std::collections::BTreeSet;
    use tokenweir_core::openai::route::{NoRoute, Route};

    #[test]
    fn the_gateway_forwards_no_path_that_controls_or_describes_a_server() {
        for path in GROUPS.iter().flat_map(|group| group.paths) {
            for method in [Method::GET, Method::POST] {
                assert_eq!(Route::of(&method, path), Err(NoRoute::NotFound), "{path}");
            }
        }
    }

    #[test]
    fn each_path_is_asked_for_once() {
        let all: BTreeSet<&str> = paths().collect();
        assert_eq!(all.len(), paths().count());
        assert!(all.iter().all(|path| path.starts_with('/')));
    }
}
