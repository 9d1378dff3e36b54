//! The view state of `sidewalk top`: the user's choices, and the effect of each key on them.
//!
//! Drawing is in `screen`. Invariant: every key has the effect that the help describes, or none.

use std::cmp::Reverse;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::window::{MethodRow, ThreadRow, WindowContent};

/// The table that is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum TopTable {
    #[default]
    Methods,
    Threads,
}

/// The value by which rows are sorted, highest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Order {
    #[default]
    Own,
    Total,
    Allocated,
    Name,
}

/// The caller's action after a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KeyAction {
    Nothing,
    /// Keep the recording.
    Keep,
    Quit,
}

/// The user's choices.
#[derive(Default)]
pub(super) struct TopView {
    pub(super) table: TopTable,
    pub(super) order: Order,
    pub(super) filter: String,
    pub(super) is_typing: bool,
    pub(super) is_paused: bool,
    pub(super) shows_help: bool,
    pub(super) selected: usize,
    /// Number of rows that fitted at the last draw.
    pub(super) page: usize,
    /// Message for the last line.
    pub(super) message: Option<String>,
}

impl TopView {
    /// Handles a key.
    pub(super) fn key(&mut self, key: KeyEvent) -> KeyAction {
        if key.kind == KeyEventKind::Release {
            return KeyAction::Nothing;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => KeyAction::Quit,
                _ => KeyAction::Nothing,
            };
        }
        if self.is_typing {
            match key.code {
                KeyCode::Enter => self.is_typing = false,
                KeyCode::Esc => {
                    self.is_typing = false;
                    self.filter.clear();
                }
                KeyCode::Backspace => {
                    self.filter.pop();
                }
                KeyCode::Char(c) => self.filter.push(c),
                _ => {}
            }
            return KeyAction::Nothing;
        }
        self.message = None;
        if self.shows_help {
            self.shows_help = false;
            return KeyAction::Nothing;
        }
        let order = match key.code {
            KeyCode::Char('s') => Some(Order::Own),
            KeyCode::Char('t') => Some(Order::Total),
            KeyCode::Char('a') => Some(Order::Allocated),
            KeyCode::Char('n') => Some(Order::Name),
            _ => None,
        };
        if let Some(order) = order {
            self.order = order;
            self.selected = 0;
        }
        match key.code {
            KeyCode::Char('q') => return KeyAction::Quit,
            KeyCode::Char('w') => return KeyAction::Keep,
            KeyCode::Char('?' | 'h') => self.shows_help = true,
            KeyCode::Char(' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('/') => {
                self.is_typing = true;
                self.filter.clear();
            }
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Tab => {
                self.table = match self.table {
                    TopTable::Methods => TopTable::Threads,
                    TopTable::Threads => TopTable::Methods,
                };
                self.selected = 0;
            }
            KeyCode::Up => self.selected = self.selected.saturating_sub(1),
            KeyCode::Down => self.selected = self.selected.saturating_add(1),
            KeyCode::PageUp => self.selected = self.selected.saturating_sub(self.page),
            KeyCode::PageDown => self.selected = self.selected.saturating_add(self.page),
            KeyCode::Home => self.selected = 0,
            KeyCode::End => self.selected = usize::MAX,
            _ => {}
        }
        KeyAction::Nothing
    }

    /// The rows to show, in order.
    pub(super) fn methods<'p>(&self, content: &'p WindowContent) -> Vec<&'p MethodRow> {
        let shown = |row: &&MethodRow| self.includes(&row.name);
        let mut rows: Vec<&MethodRow> = content.methods.iter().filter(shown).collect();
        rows.sort_by(|a, b| {
            let key = |row: &MethodRow| match self.order {
                Order::Own => Reverse((row.own, row.total)),
                Order::Total => Reverse((row.total, row.own)),
                Order::Allocated => Reverse((row.allocated, row.own_allocated)),
                Order::Name => Reverse((0, 0)),
            };
            key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
        });
        rows
    }

    /// The rows to show, in order.
    pub(super) fn threads<'p>(&self, content: &'p WindowContent) -> Vec<&'p ThreadRow> {
        let shown = |row: &&ThreadRow| self.includes(&row.name) || self.includes(&row.hottest);
        let mut rows: Vec<&ThreadRow> = content.threads.iter().filter(shown).collect();
        rows.sort_by(|a, b| {
            let key = |row: &ThreadRow| match self.order {
                Order::Own | Order::Total => Reverse(row.cpu),
                Order::Allocated => Reverse(row.allocated),
                Order::Name => Reverse(0),
            };
            let name = |row: &ThreadRow| (row.name.clone(), row.tid);
            key(a).cmp(&key(b)).then_with(|| name(a).cmp(&name(b)))
        });
        rows
    }

    fn includes(&self, text: &str) -> bool {
        text.to_lowercase().contains(&self.filter.to_lowercase())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(view: &mut TopView, keys: &str) -> KeyAction {
        let mut action = KeyAction::Nothing;
        for c in keys.chars() {
            let code = match c {
                '\t' => KeyCode::Tab,
                '\n' => KeyCode::Enter,
                '\u{1b}' => KeyCode::Esc,
                c => KeyCode::Char(c),
            };
            action = view.key(KeyEvent::from(code));
        }
        action
    }

    #[test]
    fn keys_do_what_the_help_says() {
        let mut view = TopView::default();
        assert_eq!(press(&mut view, "t\t "), KeyAction::Nothing);
        assert_eq!(
            (view.order, view.table, view.is_paused),
            (Order::Total, TopTable::Threads, true)
        );
        assert_eq!(press(&mut view, "/quit"), KeyAction::Nothing);
        assert_eq!(
            (view.filter.as_str(), view.is_typing),
            ("quit", true),
            "letters are text while a filter is typed"
        );
        assert_eq!(press(&mut view, "\nw"), KeyAction::Keep);
        press(&mut view, "\u{1b}");
        assert_eq!(view.filter, "");
        press(&mut view, "?");
        assert!(view.shows_help);
        assert_eq!(
            press(&mut view, "q"),
            KeyAction::Nothing,
            "any key closes the help"
        );
        assert_eq!(press(&mut view, "q"), KeyAction::Quit);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        press(&mut view, "/");
        assert_eq!(view.key(interrupt), KeyAction::Quit, "also while typing");
    }

    #[test]
    fn rows_are_filtered_and_in_order() {
        let row = |name: &str, own, total| MethodRow {
            name: name.to_owned(),
            own,
            total,
            ..MethodRow::default()
        };
        let content = WindowContent {
            methods: vec![row("Shop.B", 1, 9), row("Shop.A", 5, 5), row("Main", 0, 10)],
            ..WindowContent::default()
        };
        let mut view = TopView::default();
        let names = |view: &TopView| -> Vec<String> {
            let rows = view.methods(&content);
            rows.iter().map(|row| row.name.clone()).collect()
        };
        assert_eq!(names(&view), ["Shop.A", "Shop.B", "Main"]);
        press(&mut view, "t");
        assert_eq!(names(&view), ["Main", "Shop.B", "Shop.A"]);
        press(&mut view, "n/SHOP\n");
        assert_eq!(names(&view), ["Shop.A", "Shop.B"]);
    }
}
