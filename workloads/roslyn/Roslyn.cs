using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Runtime.CompilerServices;
using System.Security.Cryptography;
using System.Text;
using Microsoft.CodeAnalysis;
using Microsoft.CodeAnalysis.CSharp;
using Microsoft.CodeAnalysis.Emit;
using Microsoft.CodeAnalysis.Text;

namespace Workloads
{
    /// <summary>
    /// A compiler run: the C# compiler, cold, on a program of its own making.
    /// Thousands of methods are compiled by the JIT, on several threads.
    /// A round is one compilation; with files=N of N files. With `tell` each round
    /// is told when it ends, with the CPU time of the process until then. With
    /// reload=DIR it does something else: see Reload.
    /// </summary>
    public static class Roslyn
    {
        public static int Main(string[] args)
        {
            var run = new Run(args);
            int files = 12;
            bool tells = Array.IndexOf(args, "tell") >= 0;
            foreach (string arg in args)
            {
                if (arg.StartsWith("files=", StringComparison.Ordinal))
                {
                    files = int.Parse(arg.Substring(6));
                }
            }
            // What it compiles against is the same on every runtime.
            string[] references = File.ReadAllLines(Path.Combine(AppContext.BaseDirectory, "references.txt"));
            string reload = args.FirstOrDefault(arg => arg.StartsWith("reload=", StringComparison.Ordinal));
            if (reload != null)
            {
                return Reload.Run(reload.Substring(7), run, references.Select(path => (MetadataReference)MetadataReference.CreateFromFile(path)));
            }
            var check = new Checked("assembly");
            while (run.More())
            {
                check.Add(CompileOnce(files, references));
                if (tells)
                {
                    Console.WriteLine("round " + Clock.ProcessCpu() / 1000);
                }
            }
            check.Print();
            run.End();
            return 0;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long CompileOnce(int files, string[] references)
        {
            var parse = new CSharpParseOptions(LanguageVersion.CSharp10);
            var trees = new List<SyntaxTree>();
            for (int file = 0; file < files; file++)
            {
                SourceText text = SourceText.From(Source.File(file, 40), Encoding.UTF8);
                trees.Add(CSharpSyntaxTree.ParseText(text, parse, "part" + file + ".cs"));
            }
            var compilation = CSharpCompilation.Create(
                "Generated",
                trees,
                references.Select(path => (MetadataReference)MetadataReference.CreateFromFile(path)),
                new CSharpCompilationOptions(
                    OutputKind.DynamicallyLinkedLibrary,
                    optimizationLevel: OptimizationLevel.Release,
                    allowUnsafe: true,
                    deterministic: true));
            using (var program = new MemoryStream())
            {
                // Without symbols: a PDB names the runtime that the compiler ran on.
                EmitResult emitted = compilation.Emit(program);
                if (!emitted.Success)
                {
                    throw new InvalidOperationException(string.Join("\n", emitted.Diagnostics.Where(d => d.Severity == DiagnosticSeverity.Error).Take(20)));
                }
                using (SHA256 sha = SHA256.Create())
                {
                    return BitConverter.ToInt64(sha.ComputeHash(program.ToArray()), 0);
                }
            }
        }
    }
}
