//! Native symbols and managed lines for a profile.
