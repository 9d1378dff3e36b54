//! Draws the live table of `sidewalk top`.
//!
//! A pure function of the window's content and the user's choices, so that tests can check the
//! picture. Sums are in `window`, and the terminal is in `mod`.
//! Invariant: text from the program is escaped before it reaches the terminal.

use formats::visible;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table, TableState};

use super::view::{Order, TopTable, TopView};
use super::window::{CodeKind, MethodRow, ThreadRow, WindowContent};
use crate::units;

/// One core, in nanoseconds of CPU time per second.
const CORE: f64 = 1e9;

/// The keys and their effects.
const HELP: [(&str, &str); 11] = [
    ("Tab", "methods or threads"),
    ("s", "sort by self time"),
    ("t", "sort by total time, with what it calls"),
    ("a", "sort by memory allocated"),
    ("n", "sort by name"),
    (
        "/",
        "only rows with this text; Enter keeps it, Esc clears it",
    ),
    ("↑ ↓ PgUp PgDn Home End", "move"),
    ("Space", "pause the display; recording continues"),
    ("w", "save the recording at the end"),
    ("q, Ctrl-C", "quit; the program continues"),
    ("?, h", "this help"),
];

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, content: &WindowContent, view: &mut TopView) {
    let [head, body, foot] = Layout::vertical([
        Constraint::Length(4),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(header(content, view)), head);
    match view.table {
        TopTable::Methods => methods(frame, body, content, view),
        TopTable::Threads => threads(frame, body, content, view),
    }
    frame.render_widget(Paragraph::new(footer(view)), foot);
    if view.shows_help {
        help(frame);
    }
}

fn header(content: &WindowContent, view: &TopView) -> Vec<Line<'static>> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let program = if content.processes.is_empty() {
        "waiting for the program …".to_owned()
    } else {
        visible(&content.processes.join("   ")).into_owned()
    };
    let mut runtimes = content.runtimes.clone();
    runtimes.dedup();
    let runtimes = match runtimes.as_slice() {
        [] => String::new(),
        versions => format!("   .NET {}", visible(&versions.join(", "))),
    };
    let held = if view.is_paused { "   HELD" } else { "" };
    #[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
    let share = |ns: u64| ns as f64 * 100.0 / CORE;
    vec![
        Line::from(vec![
            Span::styled(program, bold),
            Span::raw(runtimes),
            Span::styled(held, Style::new().fg(Color::Yellow)),
        ]),
        Line::from(format!(
            "CPU {:.1} %   allocated {}/s   collections {} ({:.2} % stopped)   lock waits {} ({:.1} %)   exceptions {}",
            share(content.cpu),
            units::bytes(content.allocated),
            content.collections,
            share(content.paused),
            content.waits,
            share(content.waited),
            content.exceptions,
        )),
        Line::from(format!(
            "the last {}: {}, {} broken",
            units::seconds(std::time::Duration::from_nanos(content.span_ns)),
            formats::plural(content.samples, "sample"),
            content.broken,
        )),
        Line::default(),
    ]
}

fn footer(view: &TopView) -> Line<'static> {
    if view.is_typing {
        return Line::from(format!("/{}▏", visible(&view.filter)));
    }
    let mut message = String::new();
    if !view.filter.is_empty() {
        message.push_str(&format!("rows with \"{}\"   ", visible(&view.filter)));
    }
    if let Some(word) = &view.message {
        message.push_str(&visible(word));
        message.push_str("   ");
    }
    message.push_str("Tab threads/methods  s self  t total  a allocated  / filter  Space hold  w keep  ? help  q quit");
    Line::from(message)
}

fn marked(title: &'static str, is_order: bool) -> String {
    if is_order {
        format!("{title}▾")
    } else {
        title.to_owned()
    }
}

fn percent(ns: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
    let share = ns as f64 * 100.0 / CORE;
    format!("{share:>7.1}")
}

fn rate(bytes: u64) -> String {
    if bytes == 0 {
        String::new()
    } else {
        format!("{}/s", units::bytes(bytes))
    }
}

fn methods(frame: &mut Frame<'_>, area: Rect, content: &WindowContent, view: &mut TopView) {
    let rows = view.methods(content);
    let order = view.order;
    let header = Row::new(vec![
        marked("self %", order == Order::Own),
        marked("total %", order == Order::Total),
        marked("allocated", order == Order::Allocated),
        marked("method", order == Order::Name),
    ]);
    let body = rows.iter().map(|row: &&MethodRow| {
        let colour = match row.kind {
            CodeKind::Managed => Color::Green,
            CodeKind::Runtime => Color::Blue,
            CodeKind::Native => Color::Yellow,
            CodeKind::Other => Color::DarkGray,
        };
        let allocated = if order == Order::Allocated {
            row.allocated
        } else {
            row.own_allocated
        };
        Row::new(vec![
            Line::from(percent(row.own)).right_aligned(),
            Line::from(percent(row.total)).right_aligned(),
            Line::from(rate(allocated)).right_aligned(),
            Line::styled(visible(&row.name).into_owned(), Style::new().fg(colour)),
        ])
    });
    let widths = [
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(12),
        Constraint::Min(20),
    ];
    let count = rows.len();
    let table = Table::new(body, widths);
    show(frame, area, table, header, count, view);
}

fn threads(frame: &mut Frame<'_>, area: Rect, content: &WindowContent, view: &mut TopView) {
    let rows = view.threads(content);
    let order = view.order;
    let header = Row::new(vec![
        "tid".to_owned(),
        marked("CPU %", matches!(order, Order::Own | Order::Total)),
        marked("allocated", order == Order::Allocated),
        "locks %".to_owned(),
        marked("thread", order == Order::Name),
        "mostly in".to_owned(),
    ]);
    let body = rows.iter().map(|row: &&ThreadRow| {
        Row::new(vec![
            Line::from(row.tid.to_string()).right_aligned(),
            Line::from(percent(row.cpu)).right_aligned(),
            Line::from(rate(row.allocated)).right_aligned(),
            Line::from(percent(row.waited)).right_aligned(),
            Line::from(visible(&row.name).into_owned()),
            Line::from(visible(&row.hottest).into_owned()),
        ])
    });
    let widths = [
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(12),
        Constraint::Length(8),
        Constraint::Length(24),
        Constraint::Min(20),
    ];
    let count = rows.len();
    let table = Table::new(body, widths);
    show(frame, area, table, header, count, view);
}

fn show(
    frame: &mut Frame<'_>,
    area: Rect,
    table: Table<'_>,
    header: Row<'_>,
    count: usize,
    view: &mut TopView,
) {
    view.page = usize::from(area.height.saturating_sub(1)).max(1);
    view.selected = view.selected.min(count.saturating_sub(1));
    let mut state = TableState::default().with_selected((count > 0).then_some(view.selected));
    let table = table
        .header(header.style(Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    frame.render_stateful_widget(table, area, &mut state);
}

fn help(frame: &mut Frame<'_>) {
    let lines: Vec<Line<'_>> = HELP
        .iter()
        .map(|(key, what)| Line::from(format!(" {key:<24} {what} ")))
        .collect();
    let whole = frame.area();
    let height = u16::try_from(HELP.len() + 2).unwrap_or(u16::MAX);
    let [area] = Layout::vertical([Constraint::Length(height)])
        .flex(ratatui::layout::Flex::Center)
        .areas(whole);
    let [area] = Layout::horizontal([Constraint::Max(86)])
        .flex(ratatui::layout::Flex::Center)
        .areas(area);
    frame.render_widget(Clear, area);
    frame.render_widget(
        Paragraph::new(lines).block(Block::bordered().title(" sidewalk top ")),
        area,
    );
}

#[cfg(test)]
mod tests;
