//! Macros with which a test waits for an event.

/// If an event has not happened after this time, the test that waits for it fails.
pub(crate) const WAIT_LIMIT: std::time::Duration = std::time::Duration::from_mins(1);

/// Polls an expression until it is `Some`, and returns the value in it. The expression may contain `.await`.
macro_rules! wait_for {
    ($value:expr) => {{
        let deadline = std::time::Instant::now() + $crate::waiting::WAIT_LIMIT;
        loop {
            if let Some(value) = $value {
                break value;
            }
            let limit = $crate::waiting::WAIT_LIMIT;
            assert!(
                std::time::Instant::now() < deadline,
                "{limit:?}: {}",
                stringify!($value)
            );
            tokio::task::yield_now().await;
        }
    }};
}

/// Polls a condition until it is true. The condition may contain `.await`.
macro_rules! wait_until {
    ($condition:expr) => {
        wait_for!(if $condition { Some(()) } else { None })
    };
}
