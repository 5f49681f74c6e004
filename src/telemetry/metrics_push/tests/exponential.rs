//! Tests of exponential histograms in a push.

use super::*;

#[test]
fn exponential_histograms_have_the_counts_of_the_explicit_ones() {
    let prometheus = prometheus_with_request();
    let build = |is_exponential| {
        let status = status_snapshot();
        message::build_metrics(&prometheus, &status, time_range(), is_exponential)
    };
    let (explicit, exponential) = (build(false), build(true));
    assert_eq!(explicit.len(), exponential.len());
    let mut values = 0;
    for (explicit, exponential) in explicit.iter().zip(&exponential) {
        let Some(Data::Histogram(explicit)) = &explicit.data else { continue };
        let Some(Data::ExponentialHistogram(exponential)) = &exponential.data else {
            panic!("{exponential:?}");
        };
        assert_eq!(explicit.data_points.len(), exponential.data_points.len());
        for (explicit, exponential) in explicit.data_points.iter().zip(&exponential.data_points) {
            let buckets = exponential.positive.as_ref().unwrap();
            let counted = buckets.bucket_counts.iter().sum::<u64>() + exponential.zero_count;
            assert_eq!((counted, exponential.count), (explicit.count, explicit.count));
            assert_eq!(exponential.exemplars, explicit.exemplars);
            values += counted;
        }
    }
    assert!(values > 20, "{values}");
}
