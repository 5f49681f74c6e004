//! The state of the terminal view, and how keys and snapshots change it.

use super::backend::{DrainRisk, backend_details};
use super::columns::{BACKEND_STATE_COLUMN, TableRow, rows, shown_columns};
use super::pane::Pane;
use super::rates::TotalRates;
use ratatui::crossterm::event::KeyCode;
use tokenweir_api::{BackendSummary, GatewaySnapshot};

/// The state of the terminal view.
#[derive(Debug, Clone, Default)]
pub struct TopState {
    /// The last snapshot of the gateway. `None`: no snapshot yet.
    pub(super) document: Option<GatewaySnapshot>,
    /// Why the last request for a snapshot failed. `None`: the last request succeeded.
    pub(super) problem: Option<String>,
    pub(super) rates: TotalRates,
    /// The current pane, to which keys apply.
    pub(super) pane: Pane,
    /// The pane at the top of the screen: backends, models or tenants.
    first: Pane,
    /// The selection and the sort order of each pane, in the order of [`Pane::ALL`].
    views: [PaneView; Pane::ALL.len()],
    /// The text that a row must contain to be shown. Empty: all rows are shown.
    pub(super) filter: String,
    pub(super) mode: InputMode,
    /// A message of one line, such as the result of the last action. The next key press removes it.
    pub(super) notice: Option<String>,
    /// Whether new snapshots are ignored, because the user has paused the view.
    pub(super) is_paused: bool,
}

/// The input mode, which determines what keys do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum InputMode {
    /// The user selects rows and panes.
    #[default]
    Watching,
    /// The user types the filter.
    Filtering,
    /// The user must confirm that a backend is to be drained, or that its drain is to be ended.
    Confirming {
        /// The name of the backend to drain, or whose drain is to be ended.
        backend: String,
        /// `true`: the backend is to be drained. `false`: its drain is to be ended.
        is_drained: bool,
        /// The risk of the drain. It determines the question and the key that confirms the drain.
        risk: DrainRisk,
    },
    /// The user reads a text that covers the panes.
    Reading {
        /// The title of the text.
        title: String,
        /// The lines of the text.
        lines: Vec<String>,
        /// The index of the first visible line.
        first: usize,
    },
}

/// An action outside the view, which a key press requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserAction {
    /// Leave the program.
    Quit,
    /// Drain or undrain a backend.
    Drain {
        /// The name of the backend.
        backend: String,
        /// `true`: drain the backend. `false`: end its drain.
        is_drained: bool,
    },
    /// Show the routing decision of a request.
    ShowDecision {
        /// The id of the request.
        request_id: String,
    },
}

/// The selection and the sort order of a pane.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PaneView {
    /// Index of the selected row.
    pub(super) selected: usize,
    /// Index of the column by which the rows are sorted.
    pub(super) column: usize,
    /// Whether the largest value comes first.
    pub(super) is_descending: bool,
}

const KEY_HELP: [&str; 13] = [
    "Tab, 1 2 3   select another list",
    "4 5          show models or tenants in the place of the backends; 1 shows the backends",
    "↑ ↓ j k      select a row",
    "s            sort by the next column",
    "r            reverse the sort order",
    "/            filter all lists; Esc clears the filter",
    "d            drain or undrain the backend",
    "Enter        show the backend or the request",
    "f            show only the rows of the selected backend, model or tenant",
    "p            pause or resume",
    "?            show this help",
    "q            quit",
    "Esc          go back",
];

impl TopState {
    /// A state without a snapshot. Backends are sorted by the urgency of their condition, open streams by age
    /// (the oldest first), and ended requests by their end (the latest first).
    pub fn new() -> Self {
        let sorted_by = |column, is_descending| PaneView {
            column,
            is_descending,
            ..PaneView::default()
        };
        let views = [
            sorted_by(BACKEND_STATE_COLUMN, false),
            sorted_by(2, true),
            sorted_by(7, false),
            sorted_by(0, false),
            sorted_by(0, false),
        ];
        Self {
            views,
            ..Self::default()
        }
    }

    /// Stores a new snapshot. A paused view ignores the snapshot.
    pub fn on_document(&mut self, document: GatewaySnapshot) {
        self.problem = None;
        if !self.is_paused {
            self.rates.on_document(&document);
            self.document = Some(document);
        }
    }

    /// Stores the reason why a snapshot could not be fetched. The view shows the reason until the next
    /// snapshot arrives.
    pub fn on_problem(&mut self, problem: impl Into<String>) {
        self.problem = Some(problem.into());
    }

    /// Shows a one-line message until the next key press.
    pub fn set_notice(&mut self, notice: impl Into<String>) {
        self.notice = Some(notice.into());
    }

    /// Shows a text over the panes until a key closes it.
    pub fn on_text(&mut self, title: impl Into<String>, lines: Vec<String>) {
        self.mode = InputMode::Reading {
            title: title.into(),
            lines,
            first: 0,
        };
    }

    /// Handles a key press. Returns the action that the caller must perform. `None`: no action.
    pub fn on_key(&mut self, key: KeyCode) -> Option<UserAction> {
        self.notice = None;
        match &mut self.mode {
            InputMode::Watching => self.on_browse_key(key),
            InputMode::Filtering => {
                match key {
                    KeyCode::Char(letter) => self.filter.push(letter),
                    KeyCode::Backspace => drop(self.filter.pop()),
                    KeyCode::Esc => {
                        self.filter.clear();
                        self.mode = InputMode::Watching;
                    }
                    KeyCode::Enter => self.mode = InputMode::Watching,
                    _ => {}
                }
                None
            }
            InputMode::Confirming {
                backend,
                is_drained,
                risk,
            } => {
                let backend = std::mem::take(backend);
                let is_drained = *is_drained;
                let is_yes = risk.is_confirmed_by(key);
                self.mode = InputMode::Watching;
                is_yes.then_some(UserAction::Drain {
                    backend,
                    is_drained,
                })
            }
            InputMode::Reading { lines, first, .. } => {
                let last = lines.len().saturating_sub(1);
                match line_after(key, *first, last) {
                    Some(line) => *first = line,
                    None => self.mode = InputMode::Watching,
                }
                None
            }
        }
    }

    /// Handles a key press in the mode [`InputMode::Watching`].
    fn on_browse_key(&mut self, key: KeyCode) -> Option<UserAction> {
        let last = self.rows(self.pane).len().saturating_sub(1);
        let shown = shown_columns(self.pane, self.document.as_ref());
        let view = &mut self.views[self.pane.index()];
        match key {
            KeyCode::Char('q') => return Some(UserAction::Quit),
            KeyCode::Char('?' | 'h') => self.on_text("Keys", KEY_HELP.map(str::to_owned).to_vec()),
            KeyCode::Char('/') => self.mode = InputMode::Filtering,
            KeyCode::Char('p') => self.is_paused = !self.is_paused,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('s') => {
                let next = shown.into_iter().find(|column| *column > view.column);
                *view = PaneView {
                    column: next.unwrap_or(0),
                    is_descending: false,
                    ..*view
                };
            }
            KeyCode::Char('r') => view.is_descending = !view.is_descending,
            KeyCode::Tab => self.select_pane(self.pane_after(1)),
            KeyCode::BackTab => self.select_pane(self.pane_after(2)),
            KeyCode::Char(digit @ '1'..='5') => {
                self.select_pane(Pane::ALL[digit as usize - '1' as usize]);
            }
            KeyCode::Char('f') => self.filter_by_selected(),
            KeyCode::Char('d') => self.confirm_drain(),
            KeyCode::Enter => return self.show_details(),
            _ => view.selected = line_after(key, view.selected, last).unwrap_or(view.selected),
        }
        None
    }

    /// The panes on the screen, from top to bottom.
    pub(super) fn panes(&self) -> [Pane; 3] {
        [self.first, Pane::Streams, Pane::Ended]
    }

    /// The pane that is `steps` after the current pane on the screen. The first pane follows the last pane.
    fn pane_after(&self, steps: usize) -> Pane {
        let panes = self.panes();
        let current = panes.iter().position(|pane| *pane == self.pane);
        panes[(current.unwrap_or_default() + steps) % panes.len()]
    }

    fn select_pane(&mut self, pane: Pane) {
        self.pane = pane;
        if pane.is_first() {
            self.first = pane;
        }
    }

    /// Shows only the rows that contain the name of the selected backend, model or tenant.
    fn filter_by_selected(&mut self) {
        if !self.pane.is_first() {
            return;
        }
        if let Some(row) = self.selected_row() {
            self.filter = row.name;
            self.select_pane(Pane::Streams);
        }
    }

    /// Asks whether to drain or undrain the selected backend.
    fn confirm_drain(&mut self) {
        match (self.selected_backend(), &self.document) {
            (Some(backend), Some(document)) => {
                let is_drained = !backend.drained;
                let risk = DrainRisk::of(backend, &document.backends);
                let backend = backend.name.clone();
                self.mode = InputMode::Confirming {
                    backend,
                    is_drained,
                    risk,
                };
            }
            _ => self.set_notice("choose a backend: press 1, then ↑ ↓"),
        }
    }

    /// Shows the details of the selected backend, or filters by the selected model or tenant. For a selected
    /// request, returns the action that shows its routing decision. `None`: no request is selected.
    fn show_details(&mut self) -> Option<UserAction> {
        if let (Some(backend), Some(document)) = (self.selected_backend(), &self.document) {
            let (title, lines) = backend_details(backend, &document.verdicts);
            self.on_text(title, lines);
            return None;
        }
        match self.selected_row() {
            Some(_) if self.pane.is_first() => {
                self.filter_by_selected();
                None
            }
            Some(row) => Some(UserAction::ShowDecision {
                request_id: row.name,
            }),
            _ => {
                self.set_notice("choose a row: press 1, 2 or 3, then ↑ ↓");
                None
            }
        }
    }

    /// The selected backend. `None`: the current pane shows requests, or has no row.
    fn selected_backend(&self) -> Option<&BackendSummary> {
        if self.pane != Pane::Backends {
            return None;
        }
        let row = self.selected_row()?;
        self.document
            .as_ref()?
            .backends
            .iter()
            .find(|backend| backend.name == row.name)
    }

    /// The rows of a pane that match the filter, in sort order.
    pub(super) fn rows(&self, pane: Pane) -> Vec<TableRow> {
        let Some(document) = &self.document else {
            return Vec::new();
        };
        let view = self.views[pane.index()];
        let filter = self.filter.to_lowercase();
        let mut rows = rows(pane, document);
        rows.retain(|row| row.matches_filter(&filter));
        rows.sort_by(|left, right| left.compare(right, view.column, view.is_descending));
        rows
    }

    /// The selection and the sort order of a pane with `row_count` rows. If the selected row no longer exists,
    /// the last row is selected.
    pub(super) fn view(&self, pane: Pane, row_count: usize) -> PaneView {
        let view = self.views[pane.index()];
        PaneView {
            selected: view.selected.min(row_count.saturating_sub(1)),
            ..view
        }
    }

    fn selected_row(&self) -> Option<TableRow> {
        let mut rows = self.rows(self.pane);
        let selected = self.view(self.pane, rows.len()).selected;
        (selected < rows.len()).then(|| rows.swap_remove(selected))
    }
}

/// The line, from 0 to `last`, to which a key moves from the line `from`. `None`: the key does not move.
fn line_after(key: KeyCode, from: usize, last: usize) -> Option<usize> {
    let by = match key {
        KeyCode::Up | KeyCode::Char('k') => -1,
        KeyCode::Down | KeyCode::Char('j') => 1,
        KeyCode::PageUp => -10,
        KeyCode::PageDown => 10,
        KeyCode::Home => return Some(0),
        KeyCode::End => return Some(last),
        _ => return None,
    };
    Some(from.min(last).saturating_add_signed(by).min(last))
}
