use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent};

use super::*;
use crate::top::window::tests::{scene, window_of};

const SECOND: u64 = 1_000_000_000;

fn drawn(content: &WindowContent, view: &mut TopView) -> String {
    let mut terminal = Terminal::new(TestBackend::new(100, 14)).unwrap();
    terminal.draw(|frame| draw(frame, content, view)).unwrap();
    terminal.backend().to_string()
}

fn content() -> WindowContent {
    window_of(&scene(), 60 * SECOND).content(9 * SECOND)
}

fn press(view: &mut TopView, keys: &[KeyCode]) {
    for key in keys {
        view.key(KeyEvent::from(*key));
    }
}

#[test]
fn methods_then_threads_then_help() {
    let (content, mut view) = (content(), TopView::default());
    insta::assert_snapshot!("methods", drawn(&content, &mut view));
    press(&mut view, &[KeyCode::Tab]);
    insta::assert_snapshot!("threads", drawn(&content, &mut view));
    press(&mut view, &[KeyCode::Char('?')]);
    insta::assert_snapshot!("help", drawn(&content, &mut view));
}

#[test]
fn nothing_yet() {
    insta::assert_snapshot!(drawn(&WindowContent::default(), &mut TopView::default()));
}

#[test]
fn a_hostile_name_does_not_reach_the_terminal() {
    let mut content = content();
    for row in &mut content.methods {
        row.name = "Evil\u{1b}[2J\u{7}\u{202e}name".to_owned();
    }
    content.processes = vec!["1 \u{1b}]0;owned\u{7}".to_owned()];
    let shown = drawn(&content, &mut TopView::default());
    let raw = shown
        .chars()
        .filter(|c| c.is_control() && *c != '\n')
        .count();
    assert_eq!(raw, 0, "{shown}");
    assert!(!shown.contains('\u{202e}'), "{shown}");
}

#[test]
fn the_last_row_can_be_reached_and_no_further() {
    let (mut content, mut view) = (content(), TopView::default());
    let row = content.methods.first().cloned().unwrap();
    content.methods = (0..50)
        .map(|index| MethodRow {
            name: format!("Method{index:02}"),
            ..row.clone()
        })
        .collect();
    press(&mut view, &[KeyCode::End]);
    assert!(drawn(&content, &mut view).contains("Method49"));
    press(&mut view, &[KeyCode::Down]);
    drawn(&content, &mut view);
    press(&mut view, &[KeyCode::Up]);
    drawn(&content, &mut view);
    assert_eq!(view.selected, 48);
}
