//! Names as metadata has them, and as they are shown.

use profile::names::{method, process};
use proptest::prelude::*;
use recording::MethodKind::{self, Dynamic, Il, IlStub};

#[track_caller]
fn check(kind: MethodKind, table: &[(&str, &str, &str)]) {
    let wrong: Vec<String> = table
        .iter()
        .map(|(type_name, name, expected)| {
            (method(kind, type_name, name), type_name, name, expected)
        })
        .filter(|(shown, _, _, expected)| shown != *expected)
        .map(|(shown, type_name, name, expected)| {
            format!("{type_name} :: {name}\n  shown    {shown}\n  expected {expected}\n")
        })
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join(""));
}

#[test]
fn plain_and_nested() {
    check(
        Il,
        &[
            ("App.Program", "Main", "App.Program.Main"),
            ("Program", "Main", "Program.Main"),
            ("A.Outer+Inner+Deepest", "Run", "A.Outer.Inner.Deepest.Run"),
            ("App.Shop", "get_Price", "App.Shop.get_Price"),
            ("App.Shop", "add_Sold", "App.Shop.add_Sold"),
            ("App.Money", "op_Addition", "App.Money.op_Addition"),
            ("App.Shop", ".ctor", "App.Shop..ctor"),
            ("App.Shop", ".cctor", "App.Shop..cctor"),
            ("App.Shop", "Finalize", "App.Shop.Finalize"),
            ("<Module>", ".cctor", "<Module>..cctor"),
            (
                "<PrivateImplementationDetails>",
                "ComputeStringHash",
                "<PrivateImplementationDetails>.ComputeStringHash",
            ),
            ("", "orphan", "orphan"),
            ("Приложение.Магазин", "Купить", "Приложение.Магазин.Купить"),
            ("System.String", "Concat", "System.String.Concat"),
        ],
    );
}

#[test]
fn generics() {
    check(
        Il,
        &[
            (
                "System.Collections.Generic.List`1[System.Int32]",
                "Add",
                "System.Collections.Generic.List<int>.Add",
            ),
            (
                "System.Collections.Generic.List`1",
                "Add",
                "System.Collections.Generic.List<_>.Add",
            ),
            (
                "System.Collections.Generic.Dictionary`2[System.__Canon,System.Int32]",
                "TryInsert",
                "System.Collections.Generic.Dictionary<_, int>.TryInsert",
            ),
            (
                "System.Collections.Generic.Dictionary`2+Enumerator[System.Int32,System.__Canon]",
                "MoveNext",
                "System.Collections.Generic.Dictionary<int, _>.Enumerator.MoveNext",
            ),
            (
                "A.Outer`1+Inner`2[System.Byte,System.Char,System.Double]",
                "M",
                "A.Outer<byte>.Inner<char, double>.M",
            ),
            (
                "System.Collections.Generic.List`1[System.Collections.Generic.KeyValuePair`2[System.Int32,System.__Canon]]",
                "Add",
                "System.Collections.Generic.List<KeyValuePair<int, _>>.Add",
            ),
            (
                "System.Linq.Enumerable",
                "Select[System.Int32,System.__Canon]",
                "System.Linq.Enumerable.Select<int, _>",
            ),
            (
                "System.Span`1[System.Byte]",
                "Slice",
                "System.Span<byte>.Slice",
            ),
            ("A.Box`1[System.Byte[]]", "Get", "A.Box<byte[]>.Get"),
            ("A.Box`1[System.Int32[,]]", "Get", "A.Box<int[,]>.Get"),
            ("A.Box`1[System.__Canon[]]", "Get", "A.Box<_[]>.Get"),
            ("A.Box`1[System.Byte*]", "Get", "A.Box<byte*>.Get"),
            (
                "A.Box`1[System.Nullable`1[System.Int32]]",
                "Get",
                "A.Box<int?>.Get",
            ),
            (
                "A.Box`1[System.ValueTuple`2[System.Int32,System.__Canon]]",
                "Get",
                "A.Box<(int, _)>.Get",
            ),
            (
                "A.Box`1[App.Models.Order+Line]",
                "Get",
                "A.Box<Order.Line>.Get",
            ),
            (
                "A.Box`1[[System.Int32, System.Private.CoreLib, Version=8.0.0.0]]",
                "Get",
                "A.Box<int>.Get",
            ),
            (
                "System.Nullable`1[System.Int32]",
                "get_Value",
                "System.Nullable<int>.get_Value",
            ),
            ("System.Int32[]", "Get", "System.Int32[].Get"),
            (
                "FSharp.Map[System.Int32,System.__Canon]",
                "Add",
                "FSharp.Map<int, _>.Add",
            ),
            ("Shop.Cart+checkout@12", "MoveNext", "Shop.Cart.checkout"),
            (
                "Shop.Cart+checkout@12-1[System.Int32]",
                "MoveNext",
                "Shop.Cart.checkout<int>",
            ),
            (
                "Shop.Cart+checkout@12",
                "Invoke",
                "Shop.Cart.checkout.lambda@12",
            ),
            (
                "Shop.Cart+mail@home",
                "MoveNext",
                "Shop.Cart.mail@home.MoveNext",
            ),
            ("Shop.Cart+@12", "MoveNext", "Shop.Cart.@12.MoveNext"),
            (
                "Shop.Cart+_Closure$__1-0+VB$StateMachine___Lambda$__0",
                "MoveNext",
                "Shop.Cart.lambda#0",
            ),
            ("A.Weird`x", "M", "A.Weird`x.M"),
            ("A.Box`3[System.Int32,?,…]", "M", "A.Box<int, _, …>.M"),
        ],
    );
}

#[test]
fn lambdas_closures_and_local_functions() {
    check(
        Il,
        &[
            ("Program+<>c", "<Main>b__0_0", "Program.Main.lambda"),
            ("Program+<>c", "<Main>b__0_1", "Program.Main.lambda#2"),
            (
                "App.Shop+<>c__DisplayClass3_0",
                "<Buy>b__0",
                "App.Shop.Buy.lambda",
            ),
            (
                "App.Shop+<>c__DisplayClass3_0",
                "<Buy>b__2",
                "App.Shop.Buy.lambda#3",
            ),
            (
                "App.Shop+<>c__DisplayClass3_0`1[System.Int32]",
                "<Buy>b__0",
                "App.Shop.Buy.lambda",
            ),
            (
                "App.Shop`1+<>c__DisplayClass3_0[System.Int32]",
                "<Buy>b__0",
                "App.Shop<int>.Buy.lambda",
            ),
            ("App.Shop+<>c", "<.ctor>b__4_0", "App.Shop..ctor.lambda"),
            ("App.Shop+<>c", "<.cctor>b__9_0", "App.Shop..cctor.lambda"),
            ("App.Shop+<>c", ".cctor", "App.Shop.<>c..cctor"),
            ("App.Shop", "<get_Price>b__7_0", "App.Shop.get_Price.lambda"),
            ("Program", "<Main>g__Burn|0_0", "Program.Main.Burn"),
            (
                "Program",
                "<Main>g__Burn|0_0[System.Int32]",
                "Program.Main.Burn<int>",
            ),
            (
                "Program+<>c__DisplayClass0_0",
                "<Main>g__Burn|1",
                "Program.Main.Burn",
            ),
            ("Program", "<<Main>$>g__Burn|0_0", "Program.Main.Burn"),
            ("Program+<>c", "<<Main>$>b__0_0", "Program.Main.lambda"),
            ("Program", "<Main>$", "Program.Main"),
            ("Program", "<Main>", "Program.Main"),
            ("App.Module1", "_Lambda$__0-1", "App.Module1.lambda#0-1"),
            (
                "App.Module1+_Closure$__2-0",
                "_Lambda$__0",
                "App.Module1.lambda#0",
            ),
        ],
    );
}

#[test]
fn async_methods_and_iterators() {
    check(
        Il,
        &[
            ("Program+<FooAsync>d__5", "MoveNext", "Program.FooAsync"),
            (
                "Program+<FooAsync>d__5",
                "SetStateMachine",
                "Program.FooAsync.SetStateMachine",
            ),
            (
                "Program+<FooAsync>d__5`1[System.Int32]",
                "MoveNext",
                "Program.FooAsync<int>",
            ),
            (
                "Program+<Numbers>d__2",
                "<>m__Finally1",
                "Program.Numbers.finally",
            ),
            (
                "Program+<Numbers>d__2",
                "System.IDisposable.Dispose",
                "Program.Numbers.IDisposable.Dispose",
            ),
            (
                "Program+<Numbers>d__2",
                "System.Collections.Generic.IEnumerable<System.Int32>.GetEnumerator",
                "Program.Numbers.IEnumerable<int>.GetEnumerator",
            ),
            ("Program+<<Main>$>d__0", "MoveNext", "Program.Main"),
            (
                "Program+<>c+<<Main>b__0_0>d",
                "MoveNext",
                "Program.Main.lambda",
            ),
            (
                "Program+<>c+<<Main>b__0_3>d",
                "MoveNext",
                "Program.Main.lambda#4",
            ),
            (
                "Program+<>c__DisplayClass0_0+<<Main>g__Local|1>d",
                "MoveNext",
                "Program.Main.Local",
            ),
            (
                "Program+<<<Main>$>g__Local|0_0>d",
                "MoveNext",
                "Program.Main.Local",
            ),
            (
                "A.Tree`1+<System-Collections-Generic-IEnumerable<T>-GetEnumerator>d__3[System.Int32]",
                "MoveNext",
                "A.Tree<int>.IEnumerable<T>.GetEnumerator",
            ),
            (
                "App.Module1+VB$StateMachine_3_LoadAsync",
                "MoveNext",
                "App.Module1.LoadAsync",
            ),
            (
                "App.Shop+Enumerator",
                "MoveNext",
                "App.Shop.Enumerator.MoveNext",
            ),
            (
                "System.Runtime.CompilerServices.AsyncTaskMethodBuilder`1+AsyncStateMachineBox`1[System.Threading.Tasks.VoidTaskResult,Program+<FooAsync>d__5]",
                "MoveNext",
                "System.Runtime.CompilerServices.AsyncTaskMethodBuilder<VoidTaskResult>.AsyncStateMachineBox<Program.FooAsync>.MoveNext",
            ),
            (
                "System.Runtime.CompilerServices.AsyncMethodBuilderCore",
                "Start[Program+<FooAsync>d__5]",
                "System.Runtime.CompilerServices.AsyncMethodBuilderCore.Start<Program.FooAsync>",
            ),
            (
                "System.Runtime.CompilerServices.AsyncMethodBuilderCore",
                "Start[App.Shop+<>c+<<Buy>b__1_0>d]",
                "System.Runtime.CompilerServices.AsyncMethodBuilderCore.Start<Shop.Buy.lambda>",
            ),
            (
                "System.Threading.Tasks.Task`1[System.Threading.Tasks.VoidTaskResult]",
                "TrySetResult",
                "System.Threading.Tasks.Task<VoidTaskResult>.TrySetResult",
            ),
        ],
    );
}

#[test]
fn explicit_interfaces_records_and_file_local_types() {
    check(
        Il,
        &[
            (
                "App.Shop",
                "System.IDisposable.Dispose",
                "App.Shop.IDisposable.Dispose",
            ),
            (
                "App.Shop",
                "System.Collections.Generic.IEnumerable<T>.GetEnumerator",
                "App.Shop.IEnumerable<T>.GetEnumerator",
            ),
            (
                "App.Shop",
                "System.Collections.Generic.IEnumerable<System.Collections.Generic.KeyValuePair<System.Int32,App.Order>>.GetEnumerator",
                "App.Shop.IEnumerable<KeyValuePair<int, Order>>.GetEnumerator",
            ),
            (
                "App.Shop",
                "App.IPriced.get_Price",
                "App.Shop.IPriced.get_Price",
            ),
            ("App.Shop", "IPriced.Price", "App.Shop.IPriced.Price"),
            (
                "App.Number",
                "System.Numerics.IAdditionOperators<App.Number,App.Number,App.Number>.op_Addition",
                "App.Number.IAdditionOperators<Number, Number, Number>.op_Addition",
            ),
            ("App.Point", "<Clone>$", "App.Point.Clone"),
            ("App.Point", "PrintMembers", "App.Point.PrintMembers"),
            (
                "App.<Program>F2A5B61C4E0D7F83912C5D6E7F8091A2B3C4D5E6F708192A3B4C5D6E7F8091A2B__Secret",
                "Run",
                "App.Secret.Run",
            ),
            (
                "<>f__AnonymousType0`2[System.Int32,System.__Canon]",
                "get_Name",
                "AnonymousType0<int, _>.get_Name",
            ),
            (
                "<>z__ReadOnlyArray`1[System.Int32]",
                "get_Count",
                "ReadOnlyArray<int>.get_Count",
            ),
            ("App.Shop+<>o__3", "Site", "App.Shop.<>o__3.Site"),
        ],
    );
}

#[test]
fn code_that_has_no_source() {
    check(
        Dynamic,
        &[
            ("", "lambda_method12", "DynamicMethod lambda_method12"),
            ("dynamicClass", "Emitted", "DynamicMethod Emitted"),
            ("", "", "DynamicMethod"),
            ("App.Shop", "Fast", "DynamicMethod App.Shop.Fast"),
        ],
    );
    check(
        IlStub,
        &[
            ("", "IL_STUB_PInvoke", "[IL stub: P/Invoke]"),
            (
                "dynamicClass",
                "IL_STUB_ReversePInvoke",
                "[IL stub: reverse P/Invoke]",
            ),
            ("", "IL_STUB_InstantiatingStub", "[IL stub: instantiating]"),
            ("", "IL_STUB_NewKind", "[IL stub: NewKind]"),
            ("", "", "[IL stub]"),
        ],
    );
    check(
        Il,
        &[("dynamicClass", "IL_STUB_PInvoke", "[IL stub: P/Invoke]")],
    );
}

/// The subjects of events: types, and methods that were compiled.
#[test]
fn details() {
    use recording::Event;
    for (event, name, shown) in [
        (
            Event::Exception,
            "System.FormatException",
            "System.FormatException",
        ),
        (Event::Exception, "", ""),
        (Event::Alloc, "System.Byte[]", "System.Byte[]"),
        (
            Event::Alloc,
            "System.Collections.Generic.Dictionary`2+Entry[System.String,System.Int32][]",
            "System.Collections.Generic.Dictionary<string, int>.Entry[]",
        ),
        (
            Event::Alloc,
            "App.Program+<>c__DisplayClass3_0",
            "App.Program.<>c__DisplayClass3_0",
        ),
        (
            Event::ClassLoad,
            "App.Program+<RunAsync>d__2",
            "App.Program.RunAsync",
        ),
        (
            Event::Jit,
            "App.Program..ctor (tier 0)",
            "App.Program..ctor (tier 0)",
        ),
        (
            Event::Jit,
            "App.Program+<>c.<Main>b__0_0 (tier 1, OSR)",
            "App.Program.Main.lambda (tier 1, OSR)",
        ),
        (
            Event::Jit,
            "System.Linq.Enumerable.Select[System.Int32,System.__Canon] (ReadyToRun)",
            "System.Linq.Enumerable.Select<int, _> (ReadyToRun)",
        ),
        (
            Event::Jit,
            "App.Box`1[App.Deep.Thing].Open (tier 1)",
            "App.Box<Thing>.Open (tier 1)",
        ),
        (Event::Jit, "Emitted (optimized)", "Emitted (optimized)"),
        (Event::Jit, "(", "("),
        (Event::Gc, "generation 2", "generation 2"),
        (Event::ModuleLoad, "App+Core.dll", "App+Core.dll"),
    ] {
        assert_eq!(profile::names::detail(event, name), shown, "{event:?}");
    }
}

#[test]
fn what_is_not_understood_is_shown_as_it_is() {
    check(
        Il,
        &[
            ("<unclosed", "x", "<unclosed.x"),
            ("a]b[", "c]", "a]b[.c]"),
            (">>", "<", ">>.<"),
            ("A+", "", "A.."),
            ("A", "<b>q__7", "A.<b>q__7"),
            ("A.[]", "M", "A.[].M"),
        ],
    );
}

proptest! {
    #[test]
    fn any_text_gives_a_name(
        kind in 0..3u8,
        type_name in "[A<>\\[\\]+,.`1_c$|b-]{0,40}",
        name in "[A<>\\[\\]+,.`1_g$|d-]{0,40}|.{0,20}",
    ) {
        let _ = method(MethodKind::from_code(kind), &type_name, &name);
    }
}

#[test]
fn deep_nesting_neither_overflows_nor_takes_long() {
    for (open, close) in [("A`1[", "]"), ("<", ">d"), ("<", ">b__0")] {
        let text = format!("{}X{}", open.repeat(5_000), close.repeat(5_000));
        assert!(!method(Il, &text, "M").is_empty());
        assert!(!method(Il, "T", &text).is_empty());
    }
}

#[test]
fn processes() {
    let testhost = "dotnet exec --runtimeconfig /p/bin/Shop.Tests.runtimeconfig.json --depsfile \
                    /p/bin/Shop.Tests.deps.json /n/testhost.dll --port 1 --parentprocessid 2";
    let benchmark =
        "dotnet 5f0c-1.dll --anonymousPipes 1 2 --benchmarkName B.SortCopy --job Default";
    for (line, expected) in [
        ("/opt/server --port 80 plugin.dll", "server"),
        ("/usr/bin/dotnet bin/App.dll x.dll", "App.dll"),
        ("dotnet --roll-forward Major App.dll", "App.dll"),
        ("dotnet exec --fx-version 8.0.4 bin/App.DLL", "App.DLL"),
        ("corerun App.dll", "App.dll"),
        ("dotnet build -p:Out=x.dll", "dotnet build"),
        ("dotnet test bin/Tests.dll", "dotnet test"),
        ("dotnet -d run --project x -- y.dll", "dotnet run"),
        ("dotnet script.cs", "dotnet script.cs"),
        ("dotnet --info", "dotnet"),
        ("dotnet", "dotnet"),
        ("dotnet --depsfile", "dotnet"),
        (
            "dotnet exec /s/sdk/9/Roslyn/bincore/VBCSCompiler.dll -pipename:x",
            "VBCSCompiler",
        ),
        (
            "/s/sdk/10/Roslyn/bincore/VBCSCompiler -pipename:x",
            "VBCSCompiler",
        ),
        (
            "dotnet /s/sdk/9/Roslyn/bincore/csc.dll /noconfig @x.rsp",
            "csc",
        ),
        (
            "/s/dotnet /s/sdk/9/MSBuild.dll /nologo /nodemode:1 /nodeReuse:true",
            "MSBuild node",
        ),
        (
            "/s/dotnet /s/sdk/9/MSBuild.dll -nodeMode:8",
            "MSBuild server",
        ),
        ("/s/dotnet /s/sdk/9/MSBuild.dll -maxcpucount", "MSBuild"),
        (
            "/s/dotnet /s/DotnetTools/dotnet-watch.dll run",
            "dotnet watch",
        ),
        (testhost, "testhost: Shop.Tests"),
        (
            "/n/testhost --port 1 --testsourcepath /p/Shop.Tests.dll",
            "testhost: Shop.Tests",
        ),
        ("dotnet /n/testhost.dll --port 1", "testhost"),
        (
            "dotnet exec /s/vstest.console.dll -maxcpucount:0 /p/Shop.Tests.dll",
            "vstest.console: Shop.Tests",
        ),
        (benchmark, "bdn: B.SortCopy"),
        (
            "/p/bin/5f0c-1 --benchmarkName B.SortCopy",
            "bdn: B.SortCopy",
        ),
    ] {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(process(&words).as_deref(), Some(expected), "{line}");
    }
    assert_eq!(process::<&str>(&[]), None);
    assert_eq!(process(&[""]), None);
    // An argument may be of any length.
    let long = "x".repeat(100_000);
    assert!(process(&["dotnet", &long]).unwrap().len() < 100);
}
