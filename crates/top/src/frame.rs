//! Draws the state of the terminal view as a frame of characters, for any size of the screen.

mod style;

mod header;
mod history;

pub use style::FrameOptions;

use super::backend::DrainRisk;
use super::columns::{
    CellTone, FIRST_SPARE_PRIORITY, GROWING_COLUMN, TableCell, TableColumn, TableRow, columns,
    shown_columns,
};
use super::formatting::{common_end, cut, text};
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
    /// The snapshot, the selection and the input mode to draw.
    pub state: &'a TopState,
    /// Colours and key hints of the frame.
    pub options: FrameOptions,
}

/// Minimum size of the screen: columns and lines.
const MIN_SCREEN_SIZE: (u16, u16) = (30, 8);
/// Number of lines for the panes below which only the current pane is shown.
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
        let panes = self.state.panes();
        let lists = panes.map(|pane| self.state.rows(pane).len().max(1) + 2);
        let lines =
            header::lines(self.state, self.options, width).len() + lists.iter().sum::<usize>();
        u16::try_from(lines)
            .unwrap_or(u16::MAX)
            .max(MIN_SCREEN_SIZE.1)
    }

    /// Draws all panes, one below the other. On a terminal with few lines, draws only the current pane.
    fn render_panes(&self, area: Rect, buffer: &mut Buffer) {
        if self.options.has_keys && area.height < MIN_LINES_FOR_ALL_PANES {
            return self.render_pane(self.state.pane, area, buffer);
        }
        let panes = self.state.panes();
        let wanted = panes.map(|pane| self.state.rows(pane).len().max(1) as u16 + 2);
        let mut remaining = area;
        for (pane, height) in panes.into_iter().zip(pane_heights(wanted, area.height)) {
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
        let shown = fit_columns(columns(pane), shown, &rows, area.width);
        let mut lines = vec![title_line(pane, &shown, &view, is_current, area.width)];
        let visible_rows = usize::from(area.height.saturating_sub(1));
        let first = (view.selected + 1).saturating_sub(visible_rows.max(1));
        for (index, row) in rows.iter().enumerate().skip(first).take(visible_rows) {
            let line = self.row_line(row, &shown);
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

    fn row_line(&self, row: &TableRow, shown: &[FittedColumn]) -> Line<'static> {
        let mut spans = Vec::with_capacity(2 * shown.len());
        for column in shown {
            let Some(cell) = row.cells.get(column.index) else {
                continue;
            };
            if !spans.is_empty() {
                spans.push(Span::raw(" "));
            }
            let words = column.align(&cell.text);
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
            Pane::Models | Pane::Tenants => "no request has ended in the last minute",
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
                    "q quit  ? keys  Tab list  4 models  5 tenants  / filter  s sort  Enter details",
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
    shown: &[FittedColumn],
    view: &PaneView,
    is_current: bool,
    width: u16,
) -> Line<'static> {
    let title = |fitted: &FittedColumn| {
        let arrow = match (fitted.index == view.column, view.is_descending) {
            (false, _) => "",
            (true, false) => "↑",
            (true, true) => "↓",
        };
        fitted.align(&format!("{}{arrow}", columns(pane)[fitted.index].title))
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

/// The heights of the three panes. `wanted`: the height with which each pane shows all its rows. On a low
/// screen, the first two panes become shorter to leave space for the panes below them. The last pane gets the
/// remaining height.
fn pane_heights(wanted: [u16; 3], height: u16) -> [u16; 3] {
    let first = wanted[0].min((height / 3).max(3)).min(height);
    let remaining = height - first;
    let second = wanted[1]
        .min((remaining / 2).max(remaining.saturating_sub(wanted[2])))
        .min(remaining);
    [first, second, remaining - second]
}

/// A column of a pane on the screen.
struct FittedColumn {
    index: usize,
    /// Width of the column in characters.
    width: usize,
    is_numeric: bool,
    /// Number of last characters that all texts of the column share.
    common_end: usize,
}

impl FittedColumn {
    /// Aligns a text in the column. A text that is too long is cut.
    fn align(&self, words: &str) -> String {
        let width = self.width;
        let shown = cut(words, width, self.common_end);
        if self.is_numeric {
            format!("{shown:>width$}")
        } else {
            format!("{shown:<width$}")
        }
    }
}

/// The columns of `shown` that fit into `width`. The remaining width goes to the columns whose texts would be
/// cut, first to the names of backends.
fn fit_columns(
    columns: &[TableColumn],
    mut shown: Vec<usize>,
    rows: &[TableRow],
    width: u16,
) -> Vec<FittedColumn> {
    let available = usize::from(width) + 1;
    let lacking = |index: usize| lacking_width(&columns[index], index, rows);
    drop_columns(columns, &mut shown, lacking(0), available);
    let mut spare = available.saturating_sub(needed_width(columns, &shown));
    let fit = |index: usize| FittedColumn {
        index,
        width: columns[index].width.into(),
        is_numeric: columns[index].is_numeric,
        common_end: common_end(cells(rows, index).map(|cell| cell.text.as_str())),
    };
    let mut fitted: Vec<FittedColumn> = shown.into_iter().map(fit).collect();
    for is_first in [true, false] {
        for column in &mut fitted {
            let is_growing = columns[column.index].title == GROWING_COLUMN;
            if is_growing == is_first && !column.is_numeric {
                let extra = lacking(column.index).min(spare);
                column.width += extra;
                spare -= extra;
            }
        }
    }
    fitted
}

/// Removes the columns with the highest priority numbers until the rest fits into `available`. `lacking`: the
/// width that is missing for the names in the first column. A column of a spare priority is removed before a
/// name is cut.
fn drop_columns(columns: &[TableColumn], shown: &mut Vec<usize>, lacking: usize, available: usize) {
    while shown.len() > 1 {
        let last = shown
            .iter()
            .enumerate()
            .max_by_key(|(_, index)| columns[**index].priority);
        let Some((position, index)) = last else { break };
        let is_spare = columns[*index].priority >= FIRST_SPARE_PRIORITY;
        let names = if is_spare { lacking } else { 0 };
        if needed_width(columns, shown) + names <= available {
            break;
        }
        shown.remove(position);
    }
}

/// The minimum total width of these columns, with one space for each.
fn needed_width(columns: &[TableColumn], shown: &[usize]) -> usize {
    let widths = shown.iter().map(|index| columns[*index].width + 1);
    widths.map(usize::from).sum()
}

fn cells(rows: &[TableRow], index: usize) -> impl Iterator<Item = &TableCell> + Clone {
    rows.iter().filter_map(move |row| row.cells.get(index))
}

/// The number of characters by which the longest text of a column exceeds the least width of the column.
fn lacking_width(column: &TableColumn, index: usize, rows: &[TableRow]) -> usize {
    let lengths = cells(rows, index).map(|cell| cell.text.chars().count());
    let longest = lengths.max().unwrap_or_default();
    longest.saturating_sub(column.width.into())
}

#[cfg(test)]
mod tests;
