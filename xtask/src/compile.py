"""Compiles C# with the Roslyn assemblies, on a CoreCLR loaded into Python.

Reads one JSON object from standard input (xtask/src/workloads.rs writes it):
`options` of a job are a command line of the C# compiler.
"""

import json
import os
import sys
import tempfile

work = json.load(sys.stdin)

from clr_loader import get_coreclr
from pythonnet import set_runtime

config = {
    "runtimeOptions": {
        "framework": {"name": "Microsoft.NETCore.App", "version": work["runtime_version"]},
        "configProperties": {"System.Globalization.Invariant": True},
    }
}
with tempfile.NamedTemporaryFile("w", suffix=".runtimeconfig.json", delete=False) as file:
    json.dump(config, file)
try:
    set_runtime(get_coreclr(runtime_config=file.name, dotnet_root=work["dotnet_root"]))
    import clr
finally:
    os.unlink(file.name)

for assembly in ("Microsoft.CodeAnalysis", "Microsoft.CodeAnalysis.CSharp"):
    clr.AddReference(os.path.join(work["roslyn"], assembly + ".dll"))

from System import Array, String
from System.Collections.Generic import List
from System.IO import FileMode, FileStream
from System.Text import Encoding
from Microsoft.CodeAnalysis import DiagnosticSeverity, MetadataReference, SyntaxTree
from Microsoft.CodeAnalysis.CSharp import (
    CSharpCommandLineParser,
    CSharpCompilation,
    CSharpSyntaxTree,
)
from Microsoft.CodeAnalysis.Text import SourceText

references = {}


def reference(path):
    if path not in references:
        references[path] = MetadataReference.CreateFromFile(path)
    return references[path]


def source(path, options):
    with open(path, encoding="utf-8") as file:
        text = SourceText.From(file.read(), Encoding.UTF8)
    return CSharpSyntaxTree.ParseText(text, options, path)


def compile(job):
    arguments = CSharpCommandLineParser.Default.Parse(
        Array[String](job["options"]), os.getcwd(), None, None
    )
    problems = [str(e) for e in arguments.Errors]
    trees = List[SyntaxTree]()
    for file in arguments.SourceFiles:
        trees.Add(source(file.Path, arguments.ParseOptions))
    assemblies = List[MetadataReference]()
    for file in arguments.MetadataReferences:
        assemblies.Add(reference(file.Reference))
    name = os.path.splitext(os.path.basename(job["out"]))[0]
    compilation = CSharpCompilation.Create(
        name, trees, assemblies, arguments.CompilationOptions
    )
    program = FileStream(job["out"], FileMode.Create)
    symbols = FileStream(job["pdb"], FileMode.Create)
    try:
        emitted = compilation.Emit(
            program, symbols, None, None, None, arguments.EmitOptions
        )
    finally:
        program.Dispose()
        symbols.Dispose()
    problems += [
        str(d) for d in emitted.Diagnostics if d.Severity != DiagnosticSeverity.Hidden
    ]
    for problem in problems:
        print(problem, file=sys.stderr)
    if not emitted.Success or problems:
        for path in (job["out"], job["pdb"]):
            os.unlink(path)
        return False
    return True


sys.exit(0 if all([compile(job) for job in work["jobs"]]) else 1)
