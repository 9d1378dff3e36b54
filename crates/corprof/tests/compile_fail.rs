//! Each rule of the API that is a type, broken: it does not compile, and the compiler says why in
//! the CLR's language.

#[test]
fn broken_rules_do_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
