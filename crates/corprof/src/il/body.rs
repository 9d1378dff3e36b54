//! A method body to work on: lines of code with labels, and clauses that name labels.
//!
//! When lines are inserted, removed or replaced, a branch and a clause's bound follow the line that
//! they name; distances are worked out when the body is written. The invariant: a label is given to
//! one line only, by [`Body::line`].

use super::{Instruction, Label};
use crate::id::Token;

/// An instruction in its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// Its name in branches and clauses.
    pub label: Label,
    /// Offset in the code that it was read from; `None` for what was put in.
    pub origin: Option<u32>,
    /// The instruction.
    pub instruction: Instruction,
}

/// Kind of a clause's handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handler {
    /// `catch` of this type.
    Catch(Token),
    /// `catch … when`: the filter begins here and ends where the handler begins.
    Filter(Label),
    /// `finally`.
    Finally,
    /// A `finally` for exceptions only.
    Fault,
}

/// An exception clause: a protected range and its handler. Ends are the labels of what follows, or
/// [`Label::END`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clause {
    /// Its kind.
    pub handler: Handler,
    /// The first protected line.
    pub try_start: Label,
    /// The first that is not protected any more.
    pub try_end: Label,
    /// The first line of the handler.
    pub handler_start: Label,
    /// The first that is not the handler's any more.
    pub handler_end: Label,
}

impl Clause {
    /// Every label that it names.
    pub fn labels_mut(&mut self) -> impl Iterator<Item = &mut Label> {
        let filter = match &mut self.handler {
            Handler::Filter(start) => Some(start),
            _ => None,
        };
        let bounds = [
            &mut self.try_start,
            &mut self.try_end,
            &mut self.handler_start,
            &mut self.handler_end,
        ];
        bounds.into_iter().chain(filter)
    }
}

/// The body of a method.
///
/// Read by [`Body::read`], changed line by line, written by [`Body::write`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Body {
    /// How deep the evaluation stack gets at most.
    pub max_stack: u16,
    /// Whether locals, and what `localloc` gives, begin as zeros.
    pub init_locals: bool,
    /// The signature of the locals, a token of the table of stand-alone signatures.
    pub locals: Option<Token>,
    /// Whether the header is a fat one even where a tiny one would do.
    pub fat_header: bool,
    /// Whether clauses are written in the fat form even where the small one would do.
    pub fat_clauses: bool,
    /// The code.
    pub lines: Vec<Line>,
    /// Exception clauses, inner ones before those around them.
    pub clauses: Vec<Clause>,
    pub(super) labels: u32,
}

impl Default for Body {
    fn default() -> Self {
        Self::new()
    }
}

impl Body {
    /// A body with nothing in it, for eight values on the stack.
    pub fn new() -> Self {
        Self {
            max_stack: 8,
            init_locals: false,
            locals: None,
            fat_header: false,
            fat_clauses: false,
            lines: Vec::new(),
            clauses: Vec::new(),
            labels: 0,
        }
    }

    /// A new line with a label of its own, to be put among [`Body::lines`].
    pub fn line(&mut self, instruction: Instruction) -> Line {
        Line {
            label: self.label(),
            origin: None,
            instruction,
        }
    }

    /// A label that no line has yet.
    fn label(&mut self) -> Label {
        let label = Label(self.labels);
        // `END` is never given: 2³² - 1 lines do not fit into memory.
        self.labels = self.labels.saturating_add(1);
        label
    }

    /// Adds an instruction at the end and tells its label.
    pub fn push(&mut self, instruction: Instruction) -> Label {
        let line = self.line(instruction);
        let label = line.label;
        self.lines.push(line);
        label
    }

    /// Where the line with this label is; `None` when there is none.
    pub fn position(&self, label: Label) -> Option<usize> {
        self.lines.iter().position(|line| line.label == label)
    }

    /// Inserts instructions before a line. What branched to the line still does, past them; a
    /// protected range that began with it still does. `false` when no line has the label;
    /// [`Label::END`] is behind the last one.
    pub fn insert_before(
        &mut self,
        label: Label,
        instructions: impl IntoIterator<Item = Instruction>,
    ) -> bool {
        let at = match label {
            Label::END => Some(self.lines.len()),
            label => self.position(label),
        };
        let Some(at) = at else {
            return false;
        };
        let new = self.fresh(instructions);
        self.lines.splice(at..at, new);
        true
    }

    /// Inserts instructions so that what branches to the line runs them first, and what begins or
    /// ends at it does so at the first of them. `false` when no line has the label.
    pub fn insert_at(
        &mut self,
        label: Label,
        instructions: impl IntoIterator<Item = Instruction>,
    ) -> bool {
        let Some(at) = self.position(label) else {
            return false;
        };
        let new = self.fresh(instructions);
        self.put_at(at, new);
        true
    }

    /// Puts lines before that at a place: the first takes its label, and it the first one's.
    fn put_at(&mut self, at: usize, mut new: Vec<Line>) {
        if let Some(first) = new.first_mut()
            && let Some(line) = self.lines.get_mut(at)
        {
            core::mem::swap(&mut first.label, &mut line.label);
        }
        self.lines.splice(at..at, new);
    }

    /// As [`Body::insert_at`], for instructions that run only where `condition` leaves an `int32`
    /// that is not 0. `false` when no line has the label, or there is no condition.
    pub fn insert_at_if(
        &mut self,
        label: Label,
        condition: impl IntoIterator<Item = Instruction>,
        instructions: impl IntoIterator<Item = Instruction>,
    ) -> bool {
        let Some(at) = self.position(label) else {
            return false;
        };
        let mut new = self.fresh(condition);
        // The label that the line will have: see `put_at`.
        let Some(moved) = new.first().map(|line| line.label) else {
            return false;
        };
        new.push(self.line(Instruction::brfalse(moved)));
        new.extend(self.fresh(instructions));
        self.put_at(at, new);
        true
    }

    /// Puts instructions in a line's place; the first has its label and its origin. `false` when no
    /// line has the label, or there is no instruction to take its place.
    pub fn replace(
        &mut self,
        label: Label,
        instructions: impl IntoIterator<Item = Instruction>,
    ) -> bool {
        let Some(at) = self.position(label) else {
            return false;
        };
        let mut new = self.fresh(instructions);
        let (Some(first), Some(line)) = (new.first_mut(), self.lines.get(at)) else {
            return false;
        };
        first.label = line.label;
        first.origin = line.origin;
        self.lines.splice(at..=at, new);
        true
    }

    /// Lets every branch to `from` go to `to`.
    pub fn retarget(&mut self, from: Label, to: Label) {
        for line in &mut self.lines {
            for target in line.instruction.targets_mut() {
                if *target == from {
                    *target = to;
                }
            }
        }
    }

    /// Lines with labels of their own.
    pub(super) fn fresh(
        &mut self,
        instructions: impl IntoIterator<Item = Instruction>,
    ) -> Vec<Line> {
        let instructions = instructions.into_iter();
        instructions.map(|one| self.line(one)).collect()
    }
}
