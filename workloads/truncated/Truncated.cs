using System;
using System.IO;
using System.Reflection;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;

namespace Workloads
{
    /// <summary>
    /// Loads a copy of the library that is its last argument, cuts the file
    /// short while it is loaded, as an installation in place does, and goes on
    /// without touching it: `managed` runs code that was compiled before
    /// (leaf.dll), `precompiled` burns in a callback of it
    /// (System.Text.RegularExpressions.dll), `native` loads another copy and
    /// burns, `below` burns in a callback of it (libnative_threads.so of
    /// crates/native-threads). To be run with DOTNET_TieredCompilation=0: else
    /// the runtime reads the file to compile anew. It ends without the
    /// destructors of the library.
    /// </summary>
    public static class Truncated
    {
        [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
        private delegate void Callback();

        [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
        private delegate int CallsBack(Callback callback);

        [DllImport("libc", EntryPoint = "_exit")]
        private static extern void Exit(int code);

        private static Run run;
        private static Checked check;
        private static string copy;

        public static int Main(string[] args)
        {
            run = new Run(args);
            check = new Checked("checksum");
            string library = args[args.Length - 1];
            copy = Copy(library);
            switch (args[args.Length - 2])
            {
                case "managed":
                    Managed();
                    break;
                case "precompiled":
                    Precompiled();
                    break;
                case "native":
                    NativeLibrary.Load(copy);
                    CutShort();
                    string other = Copy(library);
                    NativeLibrary.Load(other);
                    File.Delete(other);
                    Burn();
                    break;
                default:
                    IntPtr function = NativeLibrary.GetExport(NativeLibrary.Load(copy), "call_back");
                    Callback callback = CutShortAndBurn;
                    Marshal.GetDelegateForFunctionPointer<CallsBack>(function)(callback);
                    break;
            }
            return 1;
        }

        private static string Copy(string library)
        {
            string name = Guid.NewGuid().ToString("N") + "-" + Path.GetFileName(library);
            string path = Path.Combine(Path.GetTempPath(), name);
            File.Copy(library, path);
            return path;
        }

        private static void CutShort()
        {
            using (var file = new FileStream(copy, FileMode.Open, FileAccess.Write))
            {
                file.SetLength(0);
            }
        }

        private static void CutShortAndBurn()
        {
            CutShort();
            Burn();
        }

        /// <summary>Burns, and ends the process.</summary>
        private static void Burn()
        {
            while (run.More())
            {
                check.Add(BurnRound(200_000));
            }
            End();
        }

        private static void End()
        {
            check.Print();
            run.End();
            Console.Out.Flush();
            File.Delete(copy);
            Exit(0);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnRound(int count)
        {
            long sum = 1;
            for (int i = 0; i < count; i++)
            {
                sum = sum * 31 + (sum >> 7) + i;
            }
            return sum;
        }

        private static void Managed()
        {
            MethodInfo method = Assembly.LoadFile(copy).GetType("Workloads.Leaf", true)
                .GetMethod("LeafRound", BindingFlags.NonPublic | BindingFlags.Static);
            var round = (Func<long>)method.CreateDelegate(typeof(Func<long>));
            check.Add(round());
            CutShort();
            while (run.More())
            {
                check.Add(round());
            }
            End();
        }

        private static void Precompiled()
        {
            Assembly assembly = Assembly.LoadFile(copy);
            Type regex = assembly.GetType("System.Text.RegularExpressions.Regex", true);
            Type evaluator = assembly.GetType("System.Text.RegularExpressions.MatchEvaluator", true);
            MethodInfo each = typeof(Truncated).GetMethod("Each", BindingFlags.NonPublic | BindingFlags.Static);
            MethodInfo replace = regex.GetMethod("Replace", new[] { typeof(string), evaluator });
            replace.Invoke(Activator.CreateInstance(regex, "b+"), new object[] { "abba", each.CreateDelegate(evaluator) });
        }

        private static string Each(object match)
        {
            CutShortAndBurn();
            return "";
        }
    }
}
