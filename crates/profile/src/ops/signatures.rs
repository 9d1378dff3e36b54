//! Method names with their parameters' types, which distinguish overloads.

use crate::builder::Builder;
use crate::model::Profile;

/// Returns the profile with each known signature appended to its method's name: `App.Print(int)`.
/// Stacks and samples are unchanged.
#[must_use]
pub fn with_signatures(mut profile: Profile) -> Profile {
    let mut frames = std::mem::take(&mut profile.frames);
    // Only strings are added, so the ids of frames and stacks do not change.
    let mut builder = Builder::from_profile(profile);
    for frame in &mut frames {
        if let Some(signature) = frame.signature.take() {
            let name = builder.profile.string(frame.name);
            let text = format!("{name}{}", builder.profile.string(signature));
            frame.name = builder.string(&text);
        }
    }
    builder.profile.frames = frames;
    builder.finish()
}
