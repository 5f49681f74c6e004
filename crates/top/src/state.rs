//! The state of the terminal view, and its changes by keys and snapshots.

use super::columns::{TableRow, columns, rows};
use super::pane::Pane;
use super::rates::TotalRates;
use tokenweir_api::GatewaySnapshot;

/// The state of the terminal view.
#[derive(Debug, Clone, Default)]
pub struct TopState {
    pub(super) document: Option<GatewaySnapshot>,
    /// Why the last request for a snapshot failed.
    pub(super) problem: Option<String>,
    pub(super) rates: TotalRates,
    pub(super) pane: Pane,
    views: [PaneView; 3],
    pub(super) filter: String,
    pub(super) mode: InputMode,
    /// A one-line message, such as the result of the last action.
    pub(super) notice: Option<String>,
    pub(super) is_paused: bool,
}

/// The input mode, which determines the effect of keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum InputMode {
    /// Selecting rows and panes.
    #[default]
    Watching,
    /// Typing the filter.
    Filtering,
    /// Confirming that a backend is to be drained or undrained.
    Confirming {
        /// The name of the backend.
        backend: String,
        /// Whether it is drained or undrained.
        is_drained: bool,
    },
    /// Reading a text.
    Reading {
        /// The title.
        title: String,
        /// The lines.
        lines: Vec<String>,
        /// The index of the first visible line.
        first: usize,
    },
}

/// A key press.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyPress {
    /// A character.
    Char(char),
    /// Enter.
    Enter,
    /// Escape.
    Escape,
    /// Backspace.
    Backspace,
    /// Tab.
    Tab,
    /// Tab with Shift.
    BackTab,
    /// Moves the selection down by this number of lines; up if negative.
    Move(i16),
    /// To the first line.
    Home,
    /// To the last line.
    End,
}

/// An action outside the view that a key requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserAction {
    /// Quit the program.
    Quit,
    /// Drain or undrain a backend.
    Drain {
        /// The name of the backend.
        backend: String,
        /// Whether it is drained or undrained.
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
    pub(super) selected: usize,
    pub(super) column: usize,
    pub(super) is_down: bool,
}

const KEY_HELP: [&str; 11] = [
    "Tab, 1 2 3   select another list",
    "↑ ↓ j k      select a row",
    "s            sort by the next column",
    "r            reverse the sort order",
    "/            filter all lists; Esc clears the filter",
    "d            drain or undrain the backend",
    "Enter        show the routing decision of the request",
    "p            pause or resume",
    "?            show this help",
    "q            quit",
    "Esc          go back",
];

impl TopState {
    /// A state without a snapshot. Backends are sorted by name, streams and requests by age.
    pub fn new() -> Self {
        let sorted_by = |column, is_down| PaneView { column, is_down, ..PaneView::default() };
        let views = [sorted_by(0, false), sorted_by(2, true), sorted_by(6, false)];
        Self { views, ..Self::default() }
    }

    /// Takes a new snapshot. A paused view ignores it.
    pub fn on_document(&mut self, document: GatewaySnapshot) {
        self.problem = None;
        if !self.is_paused {
            self.rates.on_document(&document);
            self.document = Some(document);
        }
    }

    /// Takes the reason why there is no new snapshot.
    pub fn on_problem(&mut self, problem: impl Into<String>) {
        self.problem = Some(problem.into());
    }

    /// Shows a one-line message until the next key.
    pub fn set_notice(&mut self, notice: impl Into<String>) {
        self.notice = Some(notice.into());
    }

    /// Shows a text until a key closes it.
    pub fn on_text(&mut self, title: impl Into<String>, lines: Vec<String>) {
        self.mode = InputMode::Reading { title: title.into(), lines, first: 0 };
    }

    /// Handles a key press. The caller performs the returned action.
    pub fn on_key(&mut self, key: KeyPress) -> Option<UserAction> {
        self.notice = None;
        match &mut self.mode {
            InputMode::Watching => self.on_browse_key(key),
            InputMode::Filtering => {
                match key {
                    KeyPress::Char(letter) => self.filter.push(letter),
                    KeyPress::Backspace => drop(self.filter.pop()),
                    KeyPress::Escape => {
                        self.filter.clear();
                        self.mode = InputMode::Watching;
                    }
                    KeyPress::Enter => self.mode = InputMode::Watching,
                    _ => {}
                }
                None
            }
            InputMode::Confirming { backend, is_drained } => {
                let (backend, is_drained) = (std::mem::take(backend), *is_drained);
                self.mode = InputMode::Watching;
                let is_yes = matches!(key, KeyPress::Char('y' | 'Y'));
                is_yes.then_some(UserAction::Drain { backend, is_drained })
            }
            InputMode::Reading { lines, first, .. } => {
                let last = lines.len().saturating_sub(1);
                match key {
                    KeyPress::Move(by) => *first = move_selection(*first, by, last),
                    KeyPress::Char('j') => *first = move_selection(*first, 1, last),
                    KeyPress::Char('k') => *first = move_selection(*first, -1, last),
                    KeyPress::Home => *first = 0,
                    KeyPress::End => *first = last,
                    _ => self.mode = InputMode::Watching,
                }
                None
            }
        }
    }

    fn on_browse_key(&mut self, key: KeyPress) -> Option<UserAction> {
        let last = self.rows(self.pane).len().saturating_sub(1);
        let columns = columns(self.pane).len();
        let view = &mut self.views[self.pane.index()];
        match key {
            KeyPress::Char('q') => return Some(UserAction::Quit),
            KeyPress::Char('?' | 'h') => self.on_text("Keys", KEY_HELP.map(str::to_owned).to_vec()),
            KeyPress::Char('/') => self.mode = InputMode::Filtering,
            KeyPress::Char('p') => self.is_paused = !self.is_paused,
            KeyPress::Escape => self.filter.clear(),
            KeyPress::Char('s') => {
                *view = PaneView { column: (view.column + 1) % columns, is_down: false, ..*view };
            }
            KeyPress::Char('r') => view.is_down = !view.is_down,
            KeyPress::Char('j') => view.selected = move_selection(view.selected, 1, last),
            KeyPress::Char('k') => view.selected = move_selection(view.selected, -1, last),
            KeyPress::Move(by) => view.selected = move_selection(view.selected, by, last),
            KeyPress::Home => view.selected = 0,
            KeyPress::End => view.selected = last,
            KeyPress::Tab => self.pane = self.pane.after(1),
            KeyPress::BackTab => self.pane = self.pane.after(2),
            KeyPress::Char(digit @ '1'..='3') => {
                self.pane = Pane::ALL[digit as usize - '1' as usize];
            }
            KeyPress::Char('d') => self.confirm_drain(),
            KeyPress::Enter => return self.request_decision(),
            KeyPress::Char(_) | KeyPress::Backspace => {}
        }
        None
    }

    fn confirm_drain(&mut self) {
        match self.selected_row() {
            Some(row) if self.pane == Pane::Backends => {
                self.mode =
                    InputMode::Confirming { backend: row.name, is_drained: !row.is_drained };
            }
            _ => self.set_notice("choose a backend: press 1, then ↑ ↓"),
        }
    }

    fn request_decision(&mut self) -> Option<UserAction> {
        match self.selected_row() {
            Some(row) if self.pane != Pane::Backends => {
                Some(UserAction::ShowDecision { request_id: row.name })
            }
            _ => {
                self.set_notice("choose a request: press 2 or 3, then ↑ ↓");
                None
            }
        }
    }

    /// The rows of a pane that match the filter, in sort order.
    pub(super) fn rows(&self, pane: Pane) -> Vec<TableRow> {
        let Some(document) = &self.document else { return Vec::new() };
        let view = self.views[pane.index()];
        let filter = self.filter.to_lowercase();
        let mut rows = rows(pane, document);
        rows.retain(|row| row.fits(&filter));
        rows.sort_by(|one, other| one.compare(other, view.column, view.is_down));
        rows
    }

    /// The view of a pane with `rows` rows; the selected index is less than `rows`.
    pub(super) fn view(&self, pane: Pane, rows: usize) -> PaneView {
        let view = self.views[pane.index()];
        PaneView { selected: view.selected.min(rows.saturating_sub(1)), ..view }
    }

    fn selected_row(&self) -> Option<TableRow> {
        let mut rows = self.rows(self.pane);
        let selected = self.view(self.pane, rows.len()).selected;
        (selected < rows.len()).then(|| rows.swap_remove(selected))
    }
}

fn move_selection(from: usize, by: i16, last: usize) -> usize {
    from.min(last).saturating_add_signed(by.into()).min(last)
}
