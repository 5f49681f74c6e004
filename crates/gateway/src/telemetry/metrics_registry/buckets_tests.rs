//! Tests of bucket bounds.

use super::*;

fn overrides(metric: &str, bounds: &[f64]) -> BTreeMap<String, Vec<f64>> {
    BTreeMap::from([(metric.to_owned(), bounds.to_vec())])
}

fn objective(text: &str) -> Objective {
    Objective {
        name: "a".into(),
        model: None,
        tier: None,
        definition: text.parse().unwrap(),
    }
}

fn bounds(buckets: &BucketOverrides, metric: &str) -> Vec<f64> {
    buckets.bounds_for(metric).to_vec()
}

#[test]
fn objectives_become_bucket_bounds() {
    let objectives = [
        objective("ttft < 1s and itl_p99 < 33ms for 99 %"),
        objective("ttft < 1200ms and itl_max < 33ms for 90 %"),
    ];
    let buckets = BucketOverrides::new(&BTreeMap::new(), &objectives).unwrap();
    let metric = "gen_ai_server_time_to_first_token_seconds";
    let ttft = bounds(&buckets, metric);
    assert_eq!(
        ttft.iter()
            .filter(|bound| (1.0..=1.2).contains(*bound))
            .count(),
        2
    );
    assert_eq!(
        ttft.len(),
        default_bounds(metric).len() + 1,
        "1 s was there"
    );
    for metric in [INTER_TOKEN_LATENCY_METRIC, INTER_CHUNK_LATENCY_METRIC] {
        assert!(bounds(&buckets, metric).contains(&0.033), "{metric}");
    }
    let response_buckets = buckets.scales();
    assert!(
        response_buckets.inter_chunk_latency.contains(&0.033)
            && response_buckets.inter_token_latency.contains(&0.033)
    );
    assert_eq!(
        response_buckets.chunk_tokens,
        ResponseBuckets::default().chunk_tokens
    );
}

#[test]
fn configured_bounds_replace_the_defaults() {
    let configured = overrides(CHUNK_TOKENS_METRIC, &[1.0, 2.0]);
    let buckets = BucketOverrides::new(&configured, &[objective("gap_max < 3s for 99 %")]).unwrap();
    assert_eq!(bounds(&buckets, CHUNK_TOKENS_METRIC), [1.0, 2.0]);
    assert_eq!(buckets.scales().chunk_tokens[..], [1.0, 2.0]);
    let configured = overrides(INTER_CHUNK_LATENCY_METRIC, &[0.5]);
    let buckets = BucketOverrides::new(&configured, &[objective("gap_max < 3s for 99 %")]).unwrap();
    assert_eq!(bounds(&buckets, INTER_CHUNK_LATENCY_METRIC), [0.5, 3.0]);
}

#[test]
fn invalid_bucket_bounds_of_a_histogram_are_rejected() {
    for (metric, invalid) in [
        (INTER_CHUNK_LATENCY_METRIC, &[][..]),
        (INTER_CHUNK_LATENCY_METRIC, &[0.0, 1.0]),
        (INTER_CHUNK_LATENCY_METRIC, &[-1.0]),
        (INTER_CHUNK_LATENCY_METRIC, &[1.0, 1.0]),
        (INTER_CHUNK_LATENCY_METRIC, &[2.0, 1.0]),
        (INTER_CHUNK_LATENCY_METRIC, &[1.0, f64::NAN]),
        (INTER_CHUNK_LATENCY_METRIC, &[f64::INFINITY]),
        ("tokenweir_requests_total", &[1.0]),
        ("tokenweir_nothing", &[1.0]),
    ] {
        assert!(
            BucketOverrides::new(&overrides(metric, invalid), &[]).is_err(),
            "{metric} {invalid:?}"
        );
    }
    let many: Vec<f64> = (1..=40).map(f64::from).collect();
    let metric = INTER_CHUNK_LATENCY_METRIC;
    assert!(BucketOverrides::new(&overrides(metric, &many), &[]).is_ok());
    let error = BucketOverrides::new(
        &overrides(metric, &many),
        &[objective("gap_max < 500ms for 9 %")],
    );
    assert_eq!(
        error.unwrap_err(),
        BucketOverridesError::TooManyBounds { metric, count: 41 }
    );
}

#[test]
fn default_bounds_keep_the_limit() {
    for row in catalog::rows() {
        assert!(
            row.kind.default_bounds().len() <= MAX_BUCKET_BOUNDS,
            "{}",
            row.name
        );
    }
    for measure in LatencyMeasure::ALL {
        for metric in metrics(measure) {
            assert!(find_histogram(metric).is_some(), "{metric}");
        }
    }
}
