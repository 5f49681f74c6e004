//! The options of a frame, and the styles of its texts.

use crate::columns::CellTone;
use ratatui::style::{Color, Modifier, Style};

/// Whether a frame has colours and key hints.
#[derive(Debug, Clone, Copy)]
pub struct FrameOptions {
    /// Whether colours are used.
    pub has_colour: bool,
    /// Whether the frame is for a terminal with key presses. `false`: the frame is a text with all panes and
    /// without key hints.
    pub has_keys: bool,
}

/// Minimum width of a wide screen, in columns. A narrower screen omits the policy, most verdicts and most key
/// hints.
pub(super) const WIDE_COLUMNS: u16 = 60;

impl FrameOptions {
    pub(super) fn tone_style(self, tone: CellTone) -> Style {
        if !self.has_colour {
            return match tone {
                CellTone::Bad | CellTone::Warning => bold_style(),
                CellTone::Plain | CellTone::Quiet | CellTone::Good => Style::new(),
            };
        }
        match tone {
            CellTone::Plain => Style::new(),
            CellTone::Quiet => Style::new().fg(Color::DarkGray),
            CellTone::Good => Style::new().fg(Color::Green),
            CellTone::Warning => Style::new().fg(Color::Yellow),
            CellTone::Bad => Style::new().fg(Color::Red),
        }
    }
}

pub(super) fn bold_style() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}
