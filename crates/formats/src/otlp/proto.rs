//! The messages of OTLP profiles that are written.
//!
//! Written by hand for prost, so that no compiler for protocol buffers is needed. Field numbers are
//! those of opentelemetry-proto 1.10 (`profiles/v1development/profiles.proto`). Fields that end in
//! `_index` or `_strindex` are indices into tables of [`Dictionary`], of which entry 0 is empty.

/// `ExportProfilesServiceRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Request {
    #[prost(message, repeated, tag = "1")]
    pub(super) resource_profiles: Vec<ResourceProfiles>,
    #[prost(message, optional, tag = "2")]
    pub(super) dictionary: Option<Dictionary>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ResourceProfiles {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scope_profiles: Vec<ScopeProfiles>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ScopeProfiles {
    #[prost(message, optional, tag = "1")]
    pub(super) scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub(super) profiles: Vec<Profile>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Scope {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

/// Its strings are inline: servers do not resolve references here.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub(super) struct AnyValue {
    /// One of several kinds of values.
    #[prost(string, optional, tag = "1")]
    pub(super) string_value: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Dictionary {
    #[prost(message, repeated, tag = "1")]
    pub(super) mappings: Vec<Mapping>,
    #[prost(message, repeated, tag = "2")]
    pub(super) locations: Vec<Location>,
    #[prost(message, repeated, tag = "3")]
    pub(super) functions: Vec<Function>,
    #[prost(message, repeated, tag = "4")]
    pub(super) links: Vec<Link>,
    #[prost(string, repeated, tag = "5")]
    pub(super) strings: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    pub(super) attributes: Vec<Attribute>,
    #[prost(message, repeated, tag = "7")]
    pub(super) stacks: Vec<Stack>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Profile {
    #[prost(message, optional, tag = "1")]
    pub(super) sample_type: Option<ValueType>,
    #[prost(message, repeated, tag = "2")]
    pub(super) samples: Vec<Sample>,
    #[prost(fixed64, tag = "3")]
    pub(super) time_unix_nano: u64,
    #[prost(uint64, tag = "4")]
    pub(super) duration_nano: u64,
    #[prost(message, optional, tag = "5")]
    pub(super) period_type: Option<ValueType>,
    #[prost(int64, tag = "6")]
    pub(super) period: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct ValueType {
    #[prost(int32, tag = "1")]
    pub(super) type_strindex: i32,
    #[prost(int32, tag = "2")]
    pub(super) unit_strindex: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Sample {
    #[prost(int32, tag = "1")]
    pub(super) stack_index: i32,
    #[prost(int32, repeated, tag = "2")]
    pub(super) attribute_indices: Vec<i32>,
    #[prost(int64, repeated, tag = "4")]
    pub(super) values: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Mapping {
    #[prost(uint64, tag = "2")]
    pub(super) memory_limit: u64,
    #[prost(int32, tag = "4")]
    pub(super) filename_strindex: i32,
    #[prost(int32, repeated, tag = "5")]
    pub(super) attribute_indices: Vec<i32>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Location {
    #[prost(int32, tag = "1")]
    pub(super) mapping_index: i32,
    #[prost(uint64, tag = "2")]
    pub(super) address: u64,
    /// Innermost first.
    #[prost(message, repeated, tag = "3")]
    pub(super) lines: Vec<Line>,
    #[prost(int32, repeated, tag = "4")]
    pub(super) attribute_indices: Vec<i32>,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct Line {
    #[prost(int32, tag = "1")]
    pub(super) function_index: i32,
    #[prost(int64, tag = "2")]
    pub(super) line: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub(super) struct Function {
    #[prost(int32, tag = "1")]
    pub(super) name_strindex: i32,
    #[prost(int32, tag = "3")]
    pub(super) filename_strindex: i32,
}

/// Entry 0 alone is written. Its ids are empty, as some servers refuse ids of zero bytes.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct Link {}

#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub(super) struct Attribute {
    #[prost(int32, tag = "1")]
    pub(super) key_strindex: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub(super) struct Stack {
    /// Leaf first.
    #[prost(int32, repeated, tag = "1")]
    pub(super) location_indices: Vec<i32>,
}
