using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Reflection;
using System.Runtime.CompilerServices;
using System.Text;
using Microsoft.CodeAnalysis;
using Microsoft.CodeAnalysis.CSharp;
using Microsoft.CodeAnalysis.Emit;
using Microsoft.CodeAnalysis.Text;

namespace Workloads
{
    /// <summary>
    /// Hot reload: compiles a program into a folder, runs it, and when the folder has a file
    /// `go` changes it, as `dotnet watch` does. Needs DOTNET_MODIFIABLE_ASSEMBLIES=debug. `Before`
    /// calls the method's first body, `After` its second, and `Later` the third, which calls a
    /// method that was not in the program before.
    /// </summary>
    public static class Reload
    {
        private delegate void ApplyUpdate(Assembly assembly, ReadOnlySpan<byte> metadata, ReadOnlySpan<byte> il, ReadOnlySpan<byte> pdb);

        /// <summary>Of each body.</summary>
        private const int LeastRounds = 10;

        /// <summary>The second body burns twenty lines below the first, and adds 1 before it begins.</summary>
        private static string Text(string before) => @"public static class Edited
{
    public static long Burn(long x)
    {" + before + @"
        for (int i = 0; i < 20000000; i++)
        {
            x = x * 31 + i;
        }
        return x;
    }
}
";

        /// <summary>The third body leaves the work to a new method, without the 1.</summary>
        private static string TextWithAdded() => Text(new string('\n', 40) + @"        return Added(x);
    }

    private static long Added(long x)
    {");

        public static int Run(string folder, Run run, IEnumerable<MetadataReference> references)
        {
            string path = Path.Combine(folder, "edited");
            CSharpCompilation first = Compilation(path, Text(""), references);
            CSharpCompilation second = Compilation(path, Text(new string('\n', 20) + "        x += 1;"), references);
            CSharpCompilation third = Compilation(path, TextWithAdded(), references);
            using (FileStream dll = File.Create(path + ".dll"), pdb = File.Create(path + ".pdb"))
            {
                var options = new EmitOptions(debugInformationFormat: DebugInformationFormat.PortablePdb, pdbFilePath: path + ".pdb");
                Check(first.Emit(dll, pdb, options: options));
            }
            Assembly assembly = Assembly.LoadFrom(path + ".dll");
            var burn = (Func<long, long>)Delegate.CreateDelegate(typeof(Func<long, long>), assembly.GetType("Edited").GetMethod("Burn"));
            Console.WriteLine("waits");
            long ofFirst = burn(1);
            long sum = 0;
            for (int i = 0; i < LeastRounds || !File.Exists(Path.Combine(folder, "go")); i++)
            {
                sum += Before(burn);
            }
            EmitBaseline baseline = EmitBaseline.CreateInitialBaseline(ModuleMetadata.CreateFromFile(path + ".dll"), method => default);
            baseline = Update(assembly, baseline, first, second);
            for (int i = 0; i < LeastRounds; i++)
            {
                sum += After(burn);
            }
            bool isSecond = burn(0) == ofFirst;
            Update(assembly, baseline, second, third, "Added");
            for (int i = 0; i < LeastRounds; i++)
            {
                sum += Later(burn);
            }
            Console.WriteLine("updated");
            while (run.More())
            {
                sum += Later(burn);
            }
            Workloads.Run.Result("updated", isSecond && burn(1) == ofFirst);
            run.End();
            return sum == 0 ? 1 : 0;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Before(Func<long, long> burn) => burn(1) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long After(Func<long, long> burn) => burn(1) + 2;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Later(Func<long, long> burn) => burn(1) + 3;

        private static CSharpCompilation Compilation(string path, string text, IEnumerable<MetadataReference> references)
        {
            SyntaxTree tree = CSharpSyntaxTree.ParseText(SourceText.From(text, Encoding.UTF8), path: path + ".cs");
            var options = new CSharpCompilationOptions(OutputKind.DynamicallyLinkedLibrary, optimizationLevel: OptimizationLevel.Debug);
            return CSharpCompilation.Create("edited", new[] { tree }, references, options);
        }

        private static void Check(EmitResult emitted)
        {
            if (!emitted.Success)
            {
                throw new InvalidOperationException(string.Join("\n", emitted.Diagnostics));
            }
        }

        /// <summary>Changes `Burn`, and adds a method.</summary>
        private static EmitBaseline Update(Assembly assembly, EmitBaseline baseline, Compilation from, Compilation to, string added = null)
        {
            ISymbol Method(Compilation of, string name) => of.GetTypeByMetadataName("Edited").GetMembers(name).Single();
            var edits = new List<SemanticEdit> { new SemanticEdit(SemanticEditKind.Update, Method(from, "Burn"), Method(to, "Burn")) };
            if (added != null)
            {
                edits.Add(new SemanticEdit(SemanticEditKind.Insert, null, Method(to, added)));
            }
            using (MemoryStream metadata = new MemoryStream(), il = new MemoryStream(), pdb = new MemoryStream())
            {
                EmitDifferenceResult emitted = to.EmitDifference(baseline, edits, symbol => false, metadata, il, pdb);
                Check(emitted);
                Type updater = Type.GetType("System.Reflection.Metadata.MetadataUpdater, System.Runtime.Loader");
                var apply = (ApplyUpdate)Delegate.CreateDelegate(typeof(ApplyUpdate), updater.GetMethod("ApplyUpdate"));
                apply(assembly, metadata.ToArray(), il.ToArray(), pdb.ToArray());
                return emitted.Baseline;
            }
        }
    }
}
