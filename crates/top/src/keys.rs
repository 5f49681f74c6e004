//! The keys that the terminal view understands.

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
    /// Moves the selection down by this number of lines, or up if the number is negative.
    Move(i16),
    /// Moves the selection to the first line.
    Home,
    /// Moves the selection to the last line.
    End,
}
