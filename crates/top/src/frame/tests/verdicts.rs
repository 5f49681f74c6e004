//! Tests of the lines of verdicts.

use super::*;

#[test]
fn a_flag_is_not_divided_at_its_hyphens() {
    let remedy = "Lower --max-num-batched-tokens (chunked prefill in smaller pieces).".into();
    let verdict = Verdict { remedy, ..document().verdicts.remove(0) };
    let state = state_with(GatewaySnapshot { verdicts: vec![verdict], ..document() });
    for width in 40..100 {
        let lines = render_screen(&state, width, 40);
        assert!(has_line_with(&lines, "--max-num-batched-tokens"), "{lines:?}");
    }
}

#[test]
fn many_verdicts_leave_space_for_the_backends() {
    let verdict = document().verdicts.remove(0);
    let verdicts =
        (0..40).map(|rule| Verdict { verdict: rule.to_string().into(), ..verdict.clone() });
    let state = state_with(GatewaySnapshot { verdicts: verdicts.collect(), ..document() });
    assert_shown(&render_screen(&state, 80, 40), &["37 more verdicts", "gpu-0"], &[]);
}

#[test]
fn one_finding_at_many_backends_is_one_line() {
    let verdict = document().verdicts.remove(0);
    let verdicts = (0..5).map(|i| Verdict { backend: format!("gpu-{i}"), ..verdict.clone() });
    let state = state_with(GatewaySnapshot { verdicts: verdicts.collect(), ..document() });
    let lines = render_screen(&state, 120, 40);
    assert_shown(&lines, &["gpu-0, gpu-1, gpu-2 and 2 more: "], &["more verdicts"]);
}
