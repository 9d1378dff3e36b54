//! Choice between a sample's logical and physical stack.
//!
//! Invariant: samples, their values and their order do not change; a sample with one stack keeps
//! it, so both views have the same totals.

use crate::model::Profile;

/// Choice between the two stacks of a sample in an async method.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum StackView {
    /// The logical stack: callers and awaiting methods, as in the source.
    #[default]
    Logical,
    /// The frames on the thread's stack: a resumed method was called by the runtime's dispatcher.
    Physical,
}

impl StackView {
    /// Both, in the order in which help texts name them.
    pub const ALL: [StackView; 2] = [StackView::Logical, StackView::Physical];

    /// Returns the choice's name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            StackView::Logical => "logical",
            StackView::Physical => "physical",
        }
    }

    /// Returns the choice with this [`name`](StackView::name).
    #[must_use]
    pub fn from_name(name: &str) -> Option<StackView> {
        StackView::ALL
            .into_iter()
            .find(|stacks| stacks.name() == name)
    }
}

/// Whether the two views of a profile differ.
#[must_use]
pub fn has_logical(profile: &Profile) -> bool {
    profile
        .samples
        .iter()
        .any(|sample| sample.logical.is_some())
}

/// Returns the profile in which each sample has only the selected stack.
#[must_use]
pub fn with_stack_view(mut profile: Profile, stacks: StackView) -> Profile {
    for sample in &mut profile.samples {
        let logical = sample.logical.take();
        if stacks == StackView::Logical {
            sample.stack = logical.unwrap_or(sample.stack);
        }
    }
    profile
}
