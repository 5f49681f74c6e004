//! Draws the state of the terminal view as a frame of characters, for any size of the screen.

mod style;

mod header;
mod history;

pub use style::FrameOptions;

use super::backend::DrainRisk;
use super::columns::{CellTone, GROWING_COLUMN, TableColumn, TableRow, columns, shown_columns};
use super::formatting::text;
use super::pane::Pane;
use super::state::{InputMode, PaneView, TopState};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph, Widget, Wrap};
use style::{WIDE_COLUMNS, bold_style};

/// A frame: the state to draw, with options.
#[derive(Debug)]
pub struct TopFrame<'a> {
    /// The state to draw.
    pub state: &'a TopState,
    /// The options.
    pub options: FrameOptions,
}

/// Minimum size of the screen: columns and lines.
const MIN_SCREEN_SIZE: (u16, u16) = (30, 8);
/// If fewer lines than this are left for the panes, only the current pane is shown.
const MIN_LINES_FOR_ALL_PANES: u16 = 14;

impl Widget for TopFrame<'_> {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        if area.width < MIN_SCREEN_SIZE.0 || area.height < MIN_SCREEN_SIZE.1 {
            let (width, height) = MIN_SCREEN_SIZE;
            let problem = format!("too small: {width} columns and {height} lines are needed");
            return Paragraph::new(problem)
                .wrap(Wrap { trim: true })
                .render(area, buffer);
        }
        let header = header::lines(self.state, self.options, area.width);
        let height = (header.len() as u16).min(area.height - 4);
        let keys = u16::from(self.options.has_keys);
        Paragraph::new(header).render(Rect { height, ..area }, buffer);
        let panes = Rect {
            y: area.y + height,
            height: area.height - height - keys,
            ..area
        };
        self.render_panes(panes, buffer);
        if self.options.has_keys {
            let footer = Rect {
                y: area.bottom() - 1,
                height: 1,
                ..area
            };
            Paragraph::new(self.footer_line(area.width)).render(footer, buffer);
        }
        if let InputMode::Reading {
            title,
            lines,
            first,
        } = &self.state.mode
        {
            render_text(
                title,
                lines.get(*first..).unwrap_or_default(),
                panes,
                buffer,
            );
        }
    }
}

impl TopFrame<'_> {
    /// Number of lines of a frame that shows all rows of all panes.
    pub fn height(&self, width: u16) -> u16 {
        let lists = Pane::ALL.map(|pane| self.state.rows(pane).len().max(1) + 2);
        let lines =
            header::lines(self.state, self.options, width).len() + lists.iter().sum::<usize>();
        u16::try_from(lines)
            .unwrap_or(u16::MAX)
            .max(MIN_SCREEN_SIZE.1)
    }

    /// Draws all panes, one below the other. If the frame is for a terminal with few lines, draws only the
    /// current pane.
    fn render_panes(&self, area: Rect, buffer: &mut Buffer) {
        if self.options.has_keys && area.height < MIN_LINES_FOR_ALL_PANES {
            return self.render_pane(self.state.pane, area, buffer);
        }
        let wanted = Pane::ALL.map(|pane| self.state.rows(pane).len().max(1) as u16 + 2);
        let mut remaining = area;
        for (pane, height) in Pane::ALL.into_iter().zip(pane_heights(wanted, area.height)) {
            self.render_pane(
                pane,
                Rect {
                    height,
                    ..remaining
                },
                buffer,
            );
            remaining = Rect {
                y: remaining.y + height,
                height: remaining.height - height,
                ..remaining
            };
        }
    }

    fn render_pane(&self, pane: Pane, area: Rect, buffer: &mut Buffer) {
        let rows = self.state.rows(pane);
        let view = self.state.view(pane, rows.len());
        let is_current = self.options.has_keys && pane == self.state.pane;
        let shown = shown_columns(pane, self.state.document.as_ref());
        let shown = fit_columns(columns(pane), shown, area.width);
        let mut lines = vec![title_line(pane, &shown, &view, is_current, area.width)];
        let visible_rows = usize::from(area.height.saturating_sub(1));
        let first = (view.selected + 1).saturating_sub(visible_rows.max(1));
        for (index, row) in rows.iter().enumerate().skip(first).take(visible_rows) {
            let line = self.row_line(row, &shown, columns(pane));
            let is_selected = is_current && index == view.selected;
            lines.push(if is_selected {
                line.patch_style(Modifier::REVERSED)
            } else {
                line
            });
        }
        if rows.is_empty() {
            lines.push(Line::styled(
                self.empty_message(pane),
                self.options.tone_style(CellTone::Quiet),
            ));
        }
        Paragraph::new(lines).render(area, buffer);
    }

    fn row_line(
        &self,
        row: &TableRow,
        shown: &[(usize, u16)],
        columns: &[TableColumn],
    ) -> Line<'static> {
        let mut spans = Vec::with_capacity(2 * shown.len());
        for (index, width) in shown {
            let Some(cell) = row.cells.get(*index) else {
                continue;
            };
            if !spans.is_empty() {
                spans.push(Span::raw(" "));
            }
            let words = align_cell(&cell.text, *width, columns[*index].is_numeric);
            let tone = if cell.tone == CellTone::Plain {
                row.tone
            } else {
                cell.tone
            };
            spans.push(Span::styled(words, self.options.tone_style(tone)));
        }
        Line::from(spans)
    }

    fn empty_message(&self, pane: Pane) -> &'static str {
        match pane {
            _ if self.state.document.is_none() => "",
            _ if !self.state.filter.is_empty() => "no row matches the filter",
            Pane::Backends => "there are no backends",
            Pane::Streams => "no stream is open",
            Pane::Ended => "no request has ended",
        }
    }

    /// The last line: the prompt of the current mode, a notice, or key hints.
    fn footer_line(&self, width: u16) -> Line<'static> {
        match &self.state.mode {
            InputMode::Filtering => Line::styled(
                format!("/{}▏", display_filter(&self.state.filter)),
                bold_style(),
            ),
            InputMode::Confirming {
                backend,
                is_drained,
                risk,
            } => {
                let words = match is_drained {
                    true => risk.question(backend),
                    false => format!("undrain {}? y / n", text(backend)),
                };
                let is_risky = *is_drained && *risk != DrainRisk::None;
                let tone = if is_risky {
                    CellTone::Bad
                } else {
                    CellTone::Warning
                };
                Line::styled(
                    words,
                    self.options.tone_style(tone).add_modifier(Modifier::BOLD),
                )
            }
            InputMode::Reading { .. } => {
                Line::styled("↑ ↓ scroll  any other key: back", bold_style())
            }
            InputMode::Watching => match (&self.state.notice, self.state.filter.as_str()) {
                (Some(notice), _) => {
                    Line::styled(text(notice), self.options.tone_style(CellTone::Warning))
                }
                (None, "") if width < WIDE_COLUMNS => Line::from("q quit  ? keys  Tab list"),
                (None, "") => Line::from(
                    "q quit  ? keys  Tab list  / filter  s sort  d drain  Enter details  p pause",
                ),
                (None, filter) => Line::from(format!(
                    "filter: {}  (Esc clears it)",
                    display_filter(filter)
                )),
            },
        }
    }
}

/// The line with the titles of the columns and an arrow for the sort order.
fn title_line(
    pane: Pane,
    shown: &[(usize, u16)],
    view: &PaneView,
    is_current: bool,
    width: u16,
) -> Line<'static> {
    let title = |(index, width): &(usize, u16)| {
        let column = columns(pane)[*index];
        let arrow = match (*index == view.column, view.is_descending) {
            (false, _) => "",
            (true, false) => "↑",
            (true, true) => "↓",
        };
        align_cell(
            &format!("{}{arrow}", column.title),
            *width,
            column.is_numeric,
        )
    };
    let words: Vec<String> = shown.iter().map(title).collect();
    let style = bold_style();
    let style = if is_current {
        style.add_modifier(Modifier::UNDERLINED)
    } else {
        style
    };
    let words = words.join(" ");
    Line::styled(
        format!("{words:<width$}", width = usize::from(width)),
        style,
    )
}

/// Draws a text over `area`.
fn render_text(title: &str, lines: &[String], area: Rect, buffer: &mut Buffer) {
    Clear.render(area, buffer);
    let mut shown = vec![
        Line::styled(title.to_owned(), bold_style()),
        Line::default(),
    ];
    shown.extend(lines.iter().map(|line| Line::from(line.clone())));
    Paragraph::new(shown)
        .wrap(Wrap { trim: false })
        .render(area, buffer);
}

/// The filter text without control characters. Empty if there is no filter.
fn display_filter(filter: &str) -> String {
    if filter.is_empty() {
        String::new()
    } else {
        text(filter)
    }
}

/// The heights of the three panes. `wanted`: the heights at which each pane shows all its rows. On a low
/// screen, the first two panes are shortened to leave space for the panes below them. The last pane gets the
/// remaining height.
fn pane_heights(wanted: [u16; 3], height: u16) -> [u16; 3] {
    let first = wanted[0].min((height / 3).max(3)).min(height);
    let remaining = height - first;
    let second = wanted[1]
        .min((remaining / 2).max(remaining.saturating_sub(wanted[2])))
        .min(remaining);
    [first, second, remaining - second]
}

/// Those of the `shown` columns that fit into `width`, each as its index and its width. The column with the
/// names of backends also gets the remaining width, up to a limit.
fn fit_columns(columns: &[TableColumn], mut shown: Vec<usize>, width: u16) -> Vec<(usize, u16)> {
    let needed =
        |shown: &[usize]| -> u16 { shown.iter().map(|index| columns[*index].width + 1).sum() };
    while needed(&shown) > width + 1 && shown.len() > 1 {
        let last = shown
            .iter()
            .enumerate()
            .max_by_key(|(_, index)| columns[**index].rank);
        let Some((position, _)) = last else { break };
        shown.remove(position);
    }
    let spare = (width + 1)
        .saturating_sub(needed(&shown))
        .min(MAX_EXTRA_COLUMNS);
    let column_width = |index: &usize| {
        let TableColumn { title, width, .. } = columns[*index];
        width + if title == GROWING_COLUMN { spare } else { 0 }
    };
    shown
        .iter()
        .map(|index| (*index, column_width(index)))
        .collect()
}

/// Maximum additional width of the column with the names of backends, in characters.
const MAX_EXTRA_COLUMNS: u16 = 30;

/// Aligns text in its column. A text that is too long is cut and ends with an ellipsis.
fn align_cell(words: &str, width: u16, is_numeric: bool) -> String {
    let width = usize::from(width);
    let mut shown: String = words.chars().take(width).collect();
    if words.chars().count() > width {
        shown = words
            .chars()
            .take(width.saturating_sub(1))
            .chain(['…'])
            .collect();
    }
    if is_numeric {
        format!("{shown:>width$}")
    } else {
        format!("{shown:<width$}")
    }
}

#[cfg(test)]
mod tests;
