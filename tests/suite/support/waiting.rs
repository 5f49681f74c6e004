//! Macros that wait for an event of a test.

/// Time after which a test fails because an awaited event has not happened.
pub(crate) const WAIT_LIMIT: std::time::Duration = std::time::Duration::from_mins(1);

/// Polls an expression until it is `Some`, and returns the value. The expression may await.
macro_rules! wait_for {
    ($value:expr) => {{
        let deadline = std::time::Instant::now() + $crate::waiting::WAIT_LIMIT;
        loop {
            if let Some(value) = $value {
                break value;
            }
            let limit = $crate::waiting::WAIT_LIMIT;
            assert!(std::time::Instant::now() < deadline, "{limit:?}: {}", stringify!($value));
            tokio::task::yield_now().await;
        }
    }};
}

/// Polls a condition until it holds. The condition may await.
macro_rules! wait_until {
    ($condition:expr) => {
        wait_for!(if $condition { Some(()) } else { None })
    };
}
