//! The list of the options that one line attaches. Their sections of the configuration, their metrics, their part of
//! the status and all that they do follow from it.

/// Calls a macro with what stands in the braces, and with the list. Each entry has a key of the configuration, the
/// option, which is a `GatewayOption`, and the description of the key.
macro_rules! with_options {
    ($callback:ident $before:tt) => {
        $callback! {
            $before
            canary: tokenweir_canary::CanaryRequests, "Canary requests to backends without traffic.";
            sleep: tokenweir_sleep::SleepMode, "Sleep mode of vLLM: when engines are woken and put to sleep.";
        }
    };
}

pub(crate) use with_options;
