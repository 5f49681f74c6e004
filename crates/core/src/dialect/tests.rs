//! What is read from small pages; whole pages of every dialect are in `tests/suite/pages.rs`.

use super::*;
use proptest::prelude::*;

#[test]
fn engines_of_one_replica_are_added_up_but_the_fullest_cache_counts() {
    let page = b"vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 2.0\n\
        vllm:num_requests_waiting{engine=\"1\",model_name=\"m\"} 3.0\n\
        vllm:num_requests_running{engine=\"0\"} 1\n\
        vllm:num_requests_running{engine=\"1\"} 0\n\
        vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\n\
        vllm:kv_cache_usage_perc{engine=\"1\"} 0.75\n\
        vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\",p=\"a,}\\\"b=\"} 1.0\n";
    let load = Load::read(page);
    assert_eq!((load.waiting, load.running, load.engines), (Some(5.0), Some(1.0), Some(2.0)));
    assert_eq!((load.kv_usage, load.kv_usage_least), (Some(0.75), Some(0.25)));
    assert_eq!(load.capacity(), Some(1_600));
    assert!(load.is_understood());
}

#[test]
fn old_and_new_names_side_by_side_are_never_added_up() {
    let page = b"vllm:gpu_prefix_cache_hits_total 5\nvllm:prefix_cache_hits_total 6\n\
        vllm:gpu_prefix_cache_hits_total 7\nvllm:gpu_cache_usage_perc 0.5\n";
    let load = Load::read(page);
    assert_eq!((load.prefix_hits, load.kv_usage), (Some(6.0), Some(0.5)));
}

#[test]
fn the_engines_own_times_are_read_under_both_names_of_the_gaps() {
    for gap in ["inter_token_latency_seconds", "time_per_output_token_seconds"] {
        let page = format!(
            "vllm:{gap}_bucket{{le=\"0.1\"}} 7\nvllm:{gap}_sum 2.5\nvllm:{gap}_count 100\n\
             vllm:time_to_first_token_seconds_sum 3\nvllm:time_to_first_token_seconds_count 4\n"
        );
        let load = Load::read(page.as_bytes());
        assert_eq!((load.gap_seconds, load.gaps), (Some(2.5), Some(100.0)), "{gap}");
        assert_eq!((load.first_token_seconds, load.first_tokens), (Some(3.0), Some(4.0)));
    }
}

#[test]
fn the_prefix_is_known_in_every_spelling() {
    for name in [
        "vllm:num_requests_running",
        "vllm_num_requests_running",
        "ray_vllm_num_requests_running",
        "ray_vllm:num_requests_running",
        "sglang:num_running_reqs",
    ] {
        let page = format!("# TYPE {name} gauge\n{name}{{a=\"b\"}} 3 1700000000 # {{}} 1\r\n");
        assert_eq!(Load::read(page.as_bytes()).running, Some(3.0), "{name}");
    }
}

#[test]
fn a_value_that_cannot_be_is_no_value() {
    for value in ["NaN", "+Inf", "-1", "abc", "", "1e999"] {
        let page = format!("vllm:num_requests_waiting {value}\nvllm:kv_cache_usage_perc 1.5\n");
        let nothing = Load { server: Some(Server::Vllm), ..Load::default() };
        assert_eq!(Load::read(page.as_bytes()), nothing, "{value}");
    }
    let unborn = Load::read(b"vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1");
    assert_eq!(unborn.capacity(), None);
}

#[test]
fn a_histogram_with_total_in_its_name_is_not_a_counter() {
    let page = b"vllm:prompt_tokens_total_bucket{le=\"1\"} 7\nvllm:prompt_tokens_created 8\n";
    assert_eq!(Load::read(page).prompt_tokens, None);
}

#[test]
fn of_two_families_on_a_page_the_first_that_tells_a_number_is_read() {
    let page = b"vllm:unknown 1\nsglang:num_running_reqs 2\nvllm:num_requests_running 7\n";
    let load = Load::read(page);
    assert_eq!((load.running, load.server), (Some(2.0), Some(Server::Sglang)));
}

#[test]
fn the_newest_series_tells_the_adapters() {
    let page = b"vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"sql,  chat\",\
        waiting_lora_adapters=\"chat,poem\"} 1.7951888321e+09\n\
        vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"old\",\
        waiting_lora_adapters=\"\"} 1.7951888320e+09\n";
    let adapters = Load::read(page).adapters.unwrap();
    assert_eq!(adapters.hashes(), ["sql", "chat", "poem"].map(adapter_hash));
    assert!(adapters.has(adapter_hash("poem")) && !adapters.has(adapter_hash("old")));
    assert_eq!(adapters.most(), Some(4));
    // Published values of FNV-1a.
    assert_eq!(adapter_hash(""), 0xcbf2_9ce4_8422_2325);
    assert_eq!(adapter_hash("foobar"), 0x8594_4171_f739_67e8);
}

#[test]
fn more_adapters_than_there_is_room_for_are_left_out() {
    let names: Vec<String> = (0..40).map(|number| format!("a{number}")).collect();
    let page =
        format!("vllm:lora_requests_info{{running_lora_adapters=\"{}\"}} 1", names.join(","));
    let adapters = Load::read(page.as_bytes()).adapters.unwrap();
    assert_eq!(adapters.hashes().len(), MAX_ADAPTERS);
    assert_eq!((adapters.hashes()[31], adapters.most()), (adapter_hash("a31"), None));
}

#[test]
fn a_replica_sleeps_if_one_of_its_engines_does() {
    let awake = |first: u8, second: u8| {
        let page = format!(
            "vllm:engine_sleep_state{{engine=\"0\",sleep_state=\"awake\"}} {first}\n\
             vllm:engine_sleep_state{{engine=\"1\",sleep_state=\"awake\"}} {second}\n\
             vllm:engine_sleep_state{{engine=\"0\",sleep_state=\"discard_all\"}} 0\n"
        );
        Load::read(page.as_bytes()).is_asleep()
    };
    assert_eq!((awake(1, 1), awake(1, 0), awake(0, 0)), (Some(false), Some(true), Some(true)));
    assert_eq!(Load::default().is_asleep(), None);
}

#[test]
fn a_restart_is_seen_by_a_count_that_went_back_or_by_the_start_of_the_process() {
    let load = |prompt: f64, started: f64| Load {
        prompt_tokens: Some(prompt),
        started: Some(started),
        ..Load::default()
    };
    let before = load(100.0, 50.0);
    assert!(!load(100.0, 50.0).is_restart_of(&before));
    assert!(!load(101.0, 50.4).is_restart_of(&before));
    assert!(load(99.0, 50.0).is_restart_of(&before));
    assert!(load(100.0, 60.0).is_restart_of(&before));
    assert!(!Load::default().is_restart_of(&before), "what is not said is no sign");
}

proptest! {
    #[test]
    fn no_page_makes_it_panic(page in "(vllm:(kv_cache_usage_perc|cache_config_info|lora_requests_info)?[{}\"\\\\=, a\n0-9.e]{0,40}){0,8}") {
        Load::read(page.as_bytes());
    }

    #[test]
    fn no_bytes_make_it_panic(page in prop::collection::vec(any::<u8>(), 0..400)) {
        Load::read(&page);
    }
}
