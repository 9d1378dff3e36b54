//! An editable method body: lines of code with labels, and clauses that refer to labels.
//!
//! Branches and clause bounds refer to lines by label, so they stay correct when lines are
//! inserted, removed or replaced. Writing the body computes the distances.
//!
//! Invariant: each label belongs to one line; [`Body::line`] assigns it.

use super::{Instruction, Label};
use crate::id::Token;

/// An instruction with its label.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// Name of the line in branches and clauses.
    pub label: Label,
    /// Offset in the original code; `None` for an inserted line.
    pub origin: Option<u32>,
    /// The instruction.
    pub instruction: Instruction,
}

/// Kind of a clause's handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handler {
    /// `catch` of this type.
    Catch(Token),
    /// `catch … when`: label at which the filter begins. It ends where the handler begins.
    Filter(Label),
    /// `finally`.
    Finally,
    /// A `finally` for exceptions only.
    Fault,
}

/// An exception clause: a protected range and its handler. An end is the label of the next line, or
/// [`Label::END`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clause {
    /// Kind of the handler.
    pub handler: Handler,
    /// The first protected line.
    pub try_start: Label,
    /// The first line after the protected range.
    pub try_end: Label,
    /// The first line of the handler.
    pub handler_start: Label,
    /// The first line after the handler.
    pub handler_end: Label,
}

impl Clause {
    /// Every label of the clause.
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
/// [`Body::read`] reads it, [`Body::write`] writes it; its lines can be changed in between.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Body {
    /// Maximum depth of the evaluation stack.
    pub max_stack: u16,
    /// Whether locals and `localloc` memory are zero-initialised.
    pub init_locals: bool,
    /// Token of the locals' stand-alone signature.
    pub locals: Option<Token>,
    /// Whether the header is fat even if a tiny one suffices.
    pub fat_header: bool,
    /// Whether clauses are written in the fat form even if the small form suffices.
    pub fat_clauses: bool,
    /// The code.
    pub lines: Vec<Line>,
    /// Exception clauses, inner before outer.
    pub clauses: Vec<Clause>,
    pub(super) labels: u32,
}

impl Default for Body {
    fn default() -> Self {
        Self::new()
    }
}

impl Body {
    /// An empty body with a stack depth of eight.
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

    /// Creates a line with a new label, for insertion into [`Body::lines`].
    pub fn line(&mut self, instruction: Instruction) -> Line {
        Line {
            label: self.label(),
            origin: None,
            instruction,
        }
    }

    /// Creates an unused label.
    fn label(&mut self) -> Label {
        let label = Label(self.labels);
        // `END` is never assigned: 2³² - 1 lines do not fit into memory.
        self.labels = self.labels.saturating_add(1);
        label
    }

    /// Appends an instruction and returns its label.
    pub fn push(&mut self, instruction: Instruction) -> Label {
        let line = self.line(instruction);
        let label = line.label;
        self.lines.push(line);
        label
    }

    /// Index of the line with this label; `None` if no line has it.
    pub fn position(&self, label: Label) -> Option<usize> {
        self.lines.iter().position(|line| line.label == label)
    }

    /// Inserts instructions before a line, outside of its label: branches to the line skip them,
    /// and a protected range that began with the line still does. Returns `false` if no line has
    /// the label. [`Label::END`] appends.
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

    /// Inserts instructions at a line, under its label: branches to the line run them first, and
    /// ranges that begin or end at the line do so at the first of them. Returns `false` if no line
    /// has the label.
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

    /// Inserts lines before the line at index `at`, which swaps labels with the first of them.
    fn put_at(&mut self, at: usize, mut new: Vec<Line>) {
        if let Some(first) = new.first_mut()
            && let Some(line) = self.lines.get_mut(at)
        {
            core::mem::swap(&mut first.label, &mut line.label);
        }
        self.lines.splice(at..at, new);
    }

    /// As [`Body::insert_at`], for instructions that run only if `condition` leaves a non-zero
    /// `int32` on the stack. Returns `false` if no line has the label, or the condition is empty.
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
        // The label that the old line gets in `put_at`.
        let Some(moved) = new.first().map(|line| line.label) else {
            return false;
        };
        new.push(self.line(Instruction::brfalse(moved)));
        new.extend(self.fresh(instructions));
        self.put_at(at, new);
        true
    }

    /// Replaces a line by instructions; the first of them takes over its label and origin. Returns
    /// `false` if no line has the label, or there are no instructions.
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

    /// Redirects every branch from `from` to `to`.
    pub fn retarget(&mut self, from: Label, to: Label) {
        for line in &mut self.lines {
            for target in line.instruction.targets_mut() {
                if *target == from {
                    *target = to;
                }
            }
        }
    }

    /// Creates lines with new labels.
    pub(super) fn fresh(
        &mut self,
        instructions: impl IntoIterator<Item = Instruction>,
    ) -> Vec<Line> {
        let instructions = instructions.into_iter();
        instructions.map(|one| self.line(one)).collect()
    }
}
