//! Tests of the colours of the numbers above the panes.

use super::*;
use tokenweir_api::{HarmLevel, HarmShare};

#[test]
fn numbers_have_the_colour_of_their_harm() {
    let level = |level| HarmShare {
        share: Some(0.1),
        level,
    };
    let harm = Harm {
        failed: level(HarmLevel::Critical),
        client_errors: level(HarmLevel::Warning),
        slow_first_output: level(HarmLevel::Critical),
        ..Harm::default()
    };
    let state = state_with(GatewaySnapshot { harm, ..document() });
    let buffer = render_cells(&state, 120, true);
    let lines = render_screen(&state, 120, 40);
    for (words, colour) in [
        ("5% failed", Color::Red),
        ("10% 4xx", Color::Yellow),
        ("25% refused", Color::Reset),
        ("TTFT p50", Color::Red),
        ("ITL p50", Color::Reset),
    ] {
        let (row, column) = lines
            .iter()
            .enumerate()
            .find_map(|(row, line)| Some((row, line.find(words)?)))
            .unwrap_or_else(|| panic!("{words}: {lines:?}"));
        assert_eq!(buffer[(column as u16, row as u16)].fg, colour, "{words}");
    }
}
