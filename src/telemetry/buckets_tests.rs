//! Which bounds a histogram has.

use super::*;

fn overrides(metric: &str, bounds: &[f64]) -> BTreeMap<String, Vec<f64>> {
    BTreeMap::from([(metric.to_owned(), bounds.to_vec())])
}

fn objective(promise: &str) -> Objective {
    Objective { name: "a".into(), model: None, tier: None, promise: promise.parse().unwrap() }
}

fn bounds(buckets: &Buckets, metric: &str) -> Vec<f64> {
    buckets.of(row(metric).unwrap()).to_vec()
}

#[test]
fn a_limit_is_a_bound_of_every_histogram_that_it_is_about_and_only_once() {
    let objectives = [
        objective("ttft < 1s and itl_p99 < 33ms for 99 %"),
        objective("ttft < 1200ms and itl_max < 33ms for 90 %"),
    ];
    let buckets = Buckets::new(&BTreeMap::new(), &objectives).unwrap();
    let ttft = bounds(&buckets, "gen_ai_server_time_to_first_token_seconds");
    assert_eq!(ttft.iter().filter(|bound| (1.0..=1.2).contains(*bound)).count(), 2);
    assert_eq!(ttft.len(), catalog::TTFT_BOUNDS.len() + 1, "1 s was there");
    for metric in [ITL, GAPS] {
        assert!(bounds(&buckets, metric).contains(&0.033), "{metric}");
    }
    let scales = buckets.scales();
    assert!(scales.gaps.contains(&0.033) && scales.itl.contains(&0.033));
    assert_eq!(scales.chunk_tokens, Scales::default().chunk_tokens);
}

#[test]
fn bounds_of_the_configuration_replace_those_of_the_catalogue() {
    let given = overrides(CHUNK_TOKENS, &[1.0, 2.0]);
    let buckets = Buckets::new(&given, &[objective("gap_max < 3s for 99 %")]).unwrap();
    assert_eq!(bounds(&buckets, CHUNK_TOKENS), [1.0, 2.0]);
    assert_eq!(buckets.scales().chunk_tokens[..], [1.0, 2.0]);
    let given = overrides(GAPS, &[0.5]);
    let buckets = Buckets::new(&given, &[objective("gap_max < 3s for 99 %")]).unwrap();
    assert_eq!(bounds(&buckets, GAPS), [0.5, 3.0]);
}

#[test]
fn what_cannot_be_bounds_is_refused() {
    for (metric, given) in [
        (GAPS, &[][..]),
        (GAPS, &[0.0, 1.0]),
        (GAPS, &[-1.0]),
        (GAPS, &[1.0, 1.0]),
        (GAPS, &[2.0, 1.0]),
        (GAPS, &[1.0, f64::NAN]),
        (GAPS, &[f64::INFINITY]),
        ("tokenweir_requests_total", &[1.0]),
        ("tokenweir_nothing", &[1.0]),
    ] {
        assert!(Buckets::new(&overrides(metric, given), &[]).is_err(), "{metric} {given:?}");
    }
    let many: Vec<f64> = (1..=40).map(f64::from).collect();
    assert!(Buckets::new(&overrides(GAPS, &many), &[]).is_ok());
    let error = Buckets::new(&overrides(GAPS, &many), &[objective("gap_max < 500ms for 9 %")]);
    assert_eq!(error.unwrap_err(), BucketsError::TooMany { metric: GAPS, count: 41 });
}

#[test]
fn every_histogram_that_ships_has_room_and_every_limit_has_one() {
    for row in catalog::rows() {
        assert!(bounds_of(row).len() <= MAX_BOUNDS, "{}", row.name);
    }
    for measure in Measure::ALL {
        for metric in metrics(measure) {
            assert!(row(metric).is_some(), "{metric}");
        }
    }
}
