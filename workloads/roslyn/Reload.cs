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
    /// `go` gives one of its methods another body, as `dotnet watch` does. Needs
    /// DOTNET_MODIFIABLE_ASSEMBLIES=debug. `Before` calls the first body, `After` the second.
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

        public static int Run(string folder, Run run, IEnumerable<MetadataReference> references)
        {
            string path = Path.Combine(folder, "edited");
            CSharpCompilation first = Compilation(path, Text(""), references);
            CSharpCompilation second = Compilation(path, Text(new string('\n', 20) + "        x += 1;"), references);
            using (FileStream dll = File.Create(path + ".dll"), pdb = File.Create(path + ".pdb"))
            {
                var options = new EmitOptions(debugInformationFormat: DebugInformationFormat.PortablePdb, pdbFilePath: path + ".pdb");
                EmitResult emitted = first.Emit(dll, pdb, options: options);
                if (!emitted.Success)
                {
                    throw new InvalidOperationException(string.Join("\n", emitted.Diagnostics));
                }
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
            Update(assembly, path + ".dll", first, second);
            for (int i = 0; i < LeastRounds; i++)
            {
                sum += After(burn);
            }
            Console.WriteLine("updated");
            while (run.More())
            {
                sum += After(burn);
            }
            Workloads.Run.Result("updated", burn(0) == ofFirst);
            run.End();
            return sum == 0 ? 1 : 0;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Before(Func<long, long> burn) => burn(1) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long After(Func<long, long> burn) => burn(1) + 2;

        private static CSharpCompilation Compilation(string path, string text, IEnumerable<MetadataReference> references)
        {
            SyntaxTree tree = CSharpSyntaxTree.ParseText(SourceText.From(text, Encoding.UTF8), path: path + ".cs");
            var options = new CSharpCompilationOptions(OutputKind.DynamicallyLinkedLibrary, optimizationLevel: OptimizationLevel.Debug);
            return CSharpCompilation.Create("edited", new[] { tree }, references, options);
        }

        private static void Update(Assembly assembly, string dll, Compilation first, Compilation second)
        {
            ISymbol Burn(Compilation of) => of.GetTypeByMetadataName("Edited").GetMembers("Burn").Single();
            EmitBaseline baseline = EmitBaseline.CreateInitialBaseline(ModuleMetadata.CreateFromFile(dll), method => default);
            var edits = new[] { new SemanticEdit(SemanticEditKind.Update, Burn(first), Burn(second)) };
            using (MemoryStream metadata = new MemoryStream(), il = new MemoryStream(), pdb = new MemoryStream())
            {
                EmitDifferenceResult emitted = second.EmitDifference(baseline, edits, symbol => false, metadata, il, pdb);
                if (!emitted.Success)
                {
                    throw new InvalidOperationException(string.Join("\n", emitted.Diagnostics));
                }
                Type updater = Type.GetType("System.Reflection.Metadata.MetadataUpdater, System.Runtime.Loader");
                var apply = (ApplyUpdate)Delegate.CreateDelegate(typeof(ApplyUpdate), updater.GetMethod("ApplyUpdate"));
                apply(assembly, metadata.ToArray(), il.ToArray(), pdb.ToArray());
            }
        }
    }
}
