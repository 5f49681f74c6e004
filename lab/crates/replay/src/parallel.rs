//! Distributes independent simulations over the processors of the machine.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use tokenweir_protocol::mutex::lock;

/// Calls `run` with each item, on as many threads as the machine has processors. The results are in the order
/// of the items.
pub(crate) fn parallel_map<T: Sync, R: Send>(items: &[T], run: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    let work = || loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        let Some(item) = items.get(index) else { return };
        let result = run(item);
        lock(&results).push((index, result));
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..threads.min(items.len()) {
            scope.spawn(work);
        }
    });
    let mut results = std::mem::take(&mut *lock(&results));
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}
