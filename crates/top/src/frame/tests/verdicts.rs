//! Tests of the lines of verdicts.

use super::*;

#[test]
fn flags_are_not_wrapped_at_hyphens() {
    let remedy = "Lower --max-num-batched-tokens (chunked prefill in smaller pieces).".into();
    let verdict = Verdict {
        remedy,
        ..document().verdicts.remove(0)
    };
    let state = state_with(GatewaySnapshot {
        verdicts: vec![verdict],
        ..document()
    });
    for width in 40..100 {
        let lines = render_screen(&state, width, 40);
        assert!(
            has_line_with(&lines, "--max-num-batched-tokens"),
            "{lines:?}"
        );
    }
}

#[test]
fn only_the_first_verdicts_are_shown() {
    let verdict = document().verdicts.remove(0);
    let verdicts = (0..40).map(|rule| Verdict {
        verdict: rule.to_string().into(),
        ..verdict.clone()
    });
    let state = state_with(GatewaySnapshot {
        verdicts: verdicts.collect(),
        ..document()
    });
    assert_shown(
        &render_screen(&state, 80, 40),
        &["37 more verdicts", "gpu-0"],
        &[],
    );
}

#[test]
fn equal_verdicts_share_a_line() {
    let verdict = document().verdicts.remove(0);
    let verdicts = (0..5).map(|i| Verdict {
        backend: format!("gpu-{i}"),
        ..verdict.clone()
    });
    let state = state_with(GatewaySnapshot {
        verdicts: verdicts.collect(),
        ..document()
    });
    let lines = render_screen(&state, 120, 40);
    assert_shown(
        &lines,
        &["gpu-0, gpu-1, gpu-2 and 2 more: "],
        &["more verdicts"],
    );
}
