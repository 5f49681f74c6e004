//! Tests with small metrics pages. The integration tests read complete pages of all dialects.

use super::*;
use proptest::prelude::*;

#[test]
fn engines_are_summed_and_kv_usage_is_maximal() {
    let page = b"vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 2.0\n\
        vllm:num_requests_waiting{engine=\"1\",model_name=\"m\"} 3.0\n\
        vllm:num_requests_running{engine=\"0\"} 1\n\
        vllm:num_requests_running{engine=\"1\"} 0\n\
        vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\n\
        vllm:kv_cache_usage_perc{engine=\"1\"} 0.75\n\
        vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\",p=\"a,}\\\"b=\"} 1.0\n";
    let load = EngineLoad::read(page);
    assert_eq!(
        (load.waiting, load.running, load.engines),
        (Some(5.0), Some(1.0), Some(2.0))
    );
    assert_eq!((load.kv_usage, load.min_kv_usage), (Some(0.75), Some(0.25)));
    assert_eq!(load.capacity(), Some(1_600));
    assert!(load.is_understood());
}

#[test]
fn old_and_new_names_are_never_summed() {
    let page = b"vllm:gpu_prefix_cache_hits_total 5\nvllm:prefix_cache_hits_total 6\n\
        vllm:gpu_prefix_cache_hits_total 7\nvllm:gpu_cache_usage_perc 0.5\n";
    let load = EngineLoad::read(page);
    assert_eq!((load.prefix_hits, load.kv_usage), (Some(6.0), Some(0.5)));
}

#[test]
fn latencies_are_read_under_both_names() {
    for gap in [
        "inter_token_latency_seconds",
        "time_per_output_token_seconds",
    ] {
        let page = format!(
            "vllm:{gap}_bucket{{le=\"0.1\"}} 7\nvllm:{gap}_sum 2.5\nvllm:{gap}_count 100\n\
             vllm:time_to_first_token_seconds_sum 3\nvllm:time_to_first_token_seconds_count 4\n"
        );
        let load = EngineLoad::read(page.as_bytes());
        assert_eq!(
            (load.gap_seconds, load.gaps),
            (Some(2.5), Some(100.0)),
            "{gap}"
        );
        assert_eq!(
            (load.first_token_seconds, load.first_tokens),
            (Some(3.0), Some(4.0))
        );
    }
}

#[test]
fn kv_block_times_are_summed_over_engines() {
    let page = b"vllm:kv_block_lifetime_seconds_bucket{engine=\"0\",le=\"1.0\"} 7\n\
        vllm:kv_block_lifetime_seconds_sum{engine=\"0\"} 60\n\
        vllm:kv_block_lifetime_seconds_sum{engine=\"1\"} 30\n\
        vllm:kv_block_lifetime_seconds_count{engine=\"0\"} 4\n\
        vllm:kv_block_idle_before_evict_seconds_sum{engine=\"0\"} 20\n\
        vllm:kv_block_idle_before_evict_seconds_count{engine=\"0\"} 4\n\
        vllm:kv_block_reuse_gap_seconds_sum{engine=\"0\"} 8\n\
        vllm:kv_block_reuse_gap_seconds_count{engine=\"0\"} 16\n";
    let blocks = EngineLoad::read(page).kv_blocks;
    assert_eq!(
        (blocks.lifetime_seconds, blocks.lifetimes),
        (Some(90.0), Some(4.0))
    );
    assert_eq!(
        (blocks.idle_seconds, blocks.idle_times),
        (Some(20.0), Some(4.0))
    );
    assert_eq!(
        (blocks.reuse_gap_seconds, blocks.reuse_gaps),
        (Some(8.0), Some(16.0))
    );
}

#[test]
fn every_spelling_of_the_prefix_is_recognized() {
    for name in [
        "vllm:num_requests_running",
        "vllm_num_requests_running",
        "ray_vllm_num_requests_running",
        "ray_vllm:num_requests_running",
        "sglang:num_running_reqs",
    ] {
        let page = format!("# TYPE {name} gauge\n{name}{{a=\"b\"}} 3 1700000000 # {{}} 1\r\n");
        assert_eq!(
            EngineLoad::read(page.as_bytes()).running,
            Some(3.0),
            "{name}"
        );
    }
}

#[test]
fn another_gateways_page_sums_its_backends_and_queue() {
    let page = b"tokenweir_backend_running_requests{backend=\"a\"} 3\n\
        tokenweir_backend_running_requests{backend=\"b\"} 4\n\
        tokenweir_backend_waiting_requests{backend=\"a\"} 1\n\
        tokenweir_backend_waiting_requests{backend=\"b\"} NaN\n\
        tokenweir_queue_requests{class=\"default\"} 5\n\
        tokenweir_backend_kv_usage_ratio{backend=\"b\"} 0.5\n\
        tokenweir_engine_tokens_total{backend=\"a\",type=\"input\"} 70\n\
        tokenweir_engine_tokens_total{backend=\"a\",type=\"output\"} 20\n";
    let load = EngineLoad::read(page);
    assert_eq!((load.running, load.waiting), (Some(7.0), Some(6.0)));
    assert_eq!(
        (load.kv_usage, load.token_counts()),
        (
            Some(0.5),
            Some(TokenCounts {
                prompt: 70.0,
                generated: 20.0
            })
        )
    );
    assert_eq!(load.server, Some(EngineKind::Gateway));
}

#[test]
fn white_space_in_a_line_has_no_meaning() {
    for space in [" ", "\t", " \t "] {
        let page = format!(
            "vllm:num_requests_waiting{space}{{engine=\"0\" , m = \"a\"}}{space}2{space}\r\n"
        );
        assert_eq!(
            EngineLoad::read(page.as_bytes()).waiting,
            Some(2.0),
            "{page}"
        );
    }
}

#[test]
fn an_invalid_metric_value_is_ignored() {
    for value in ["NaN", "+Inf", "-1", "abc", "", "1e999"] {
        let page = format!("vllm:num_requests_waiting {value}\nvllm:kv_cache_usage_perc 1.5\n");
        let load_without_values = EngineLoad {
            server: Some(EngineKind::Vllm),
            ..EngineLoad::default()
        };
        assert_eq!(
            EngineLoad::read(page.as_bytes()),
            load_without_values,
            "{value}"
        );
    }
    let unallocated =
        EngineLoad::read(b"vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1");
    assert_eq!(unallocated.capacity(), None);
}

#[test]
fn a_histogram_named_total_is_no_counter() {
    let page = b"vllm:prompt_tokens_total_bucket{le=\"1\"} 7\nvllm:prompt_tokens_created 8\n";
    assert_eq!(EngineLoad::read(page).prompt_tokens, None);
}

#[test]
fn the_first_kind_with_a_value_counts() {
    let page = b"vllm:unknown 1\nsglang:num_running_reqs 2\nvllm:num_requests_running 7\n";
    let load = EngineLoad::read(page);
    assert_eq!(
        (load.running, load.server),
        (Some(2.0), Some(EngineKind::Sglang))
    );
}

#[test]
fn lora_adapters_are_those_of_the_newest_series() {
    let page = b"vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"sql,  chat\",\
        waiting_lora_adapters=\"chat,poem\"} 1.7951888321e+09\n\
        vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"old\",\
        waiting_lora_adapters=\"\"} 1.7951888320e+09\n";
    let adapters = EngineLoad::read(page).adapters.unwrap();
    assert_eq!(adapters.hashes(), ["sql", "chat", "poem"].map(adapter_hash));
    assert!(adapters.has(adapter_hash("poem")) && !adapters.has(adapter_hash("old")));
    assert_eq!(adapters.max_loras(), Some(4));
    // Published test values of the hash function FNV-1a.
    assert_eq!(adapter_hash(""), 0xcbf2_9ce4_8422_2325);
    assert_eq!(adapter_hash("foobar"), 0x8594_4171_f739_67e8);
}

#[test]
fn lora_adapters_beyond_the_maximum_number_are_ignored() {
    let names: Vec<String> = (0..40).map(|number| format!("a{number}")).collect();
    let page = format!(
        "vllm:lora_requests_info{{running_lora_adapters=\"{}\"}} 1",
        names.join(",")
    );
    let adapters = EngineLoad::read(page.as_bytes()).adapters.unwrap();
    assert_eq!(adapters.hashes().len(), MAX_ADAPTERS);
    assert_eq!(
        (adapters.hashes()[31], adapters.max_loras()),
        (adapter_hash("a31"), None)
    );
}

#[test]
fn one_sleeping_engine_marks_the_backend_as_asleep() {
    let is_asleep = |first: u8, second: u8| {
        let page = format!(
            "vllm:engine_sleep_state{{engine=\"0\",sleep_state=\"awake\"}} {first}\n\
             vllm:engine_sleep_state{{engine=\"1\",sleep_state=\"awake\"}} {second}\n\
             vllm:engine_sleep_state{{engine=\"0\",sleep_state=\"discard_all\"}} 0\n"
        );
        EngineLoad::read(page.as_bytes()).is_asleep()
    };
    assert_eq!(
        (is_asleep(1, 1), is_asleep(1, 0), is_asleep(0, 0)),
        (Some(false), Some(true), Some(true))
    );
    assert_eq!(EngineLoad::default().is_asleep(), None);
}

#[test]
fn lower_counters_or_new_start_times_show_restarts() {
    let load = |prompt: f64, started: f64| EngineLoad {
        prompt_tokens: Some(prompt),
        started: Some(started),
        ..EngineLoad::default()
    };
    let previous = load(100.0, 50.0);
    assert!(!load(100.0, 50.0).is_restart_of(&previous));
    assert!(!load(101.0, 50.4).is_restart_of(&previous));
    assert!(load(99.0, 50.0).is_restart_of(&previous));
    assert!(load(100.0, 60.0).is_restart_of(&previous));
    assert!(
        !EngineLoad::default().is_restart_of(&previous),
        "absent values show no restart"
    );
}

proptest! {
    #[test]
    fn no_metrics_page_makes_the_page_parser_panic(page in "(vllm:(kv_cache_usage_perc|cache_config_info|lora_requests_info)?[{}\"\\\\=, a\n0-9.e]{0,40}){0,8}") {
        EngineLoad::read(page.as_bytes());
    }

    #[test]
    fn no_bytes_make_the_parser_panic(page in prop::collection::vec(any::<u8>(), 0..400)) {
        EngineLoad::read(&page);
    }
}
