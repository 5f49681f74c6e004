//! `cargo bench --bench parts`: measures each part of the hot path on bytes recorded from a real
//! vLLM: the time per item, and the bytes per second.
#![expect(clippy::unwrap_used, reason = "a bench that cannot go on has failed")]

mod work;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::time::Duration;
use tokenweir_core::clock;

/// The allocator of the packages.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn parts(c: &mut Criterion) {
    for mut part in work::all(&[2, 16, 1_000]) {
        // Criterion sets the throughput per group.
        let mut group = c.benchmark_group("parts");
        if part.bytes > 0 {
            group.throughput(Throughput::Bytes(part.bytes / part.items));
        }
        group.bench_function(part.name, |b| {
            b.iter_custom(|items| {
                let pieces = items.div_ceil(part.items);
                let begun = clock::now();
                (0..pieces).for_each(|_| (part.work)());
                let took = clock::now() - begun;
                took.mul_f64(items as f64 / (pieces * part.items) as f64)
            });
        });
        group.finish();
    }
}

fn config() -> Criterion {
    // Short measurements: they serve comparisons before and after a change on the same machine.
    Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(30)
}

criterion_group!(name = all; config = config(); targets = parts);
criterion_main!(all);
