//! The command line of Sidewalk.
