using System;
using System.IO;
using System.Linq;
using System.Threading;

namespace Workloads
{
    /// <summary>
    /// Passes of a program's work that somebody else asks for, by files in a folder (`asked=FOLDER`): `go-1`, `go-2` and so
    /// on each for one more, of which `said-1` and so on then say what the program says; `end` for no more.
    /// </summary>
    public static class Passes
    {
        /// <summary>The folder; null where nobody asks.</summary>
        public static string Folder(string[] args) =>
            args.FirstOrDefault(arg => arg.StartsWith("asked=", StringComparison.Ordinal))?.Substring(6);

        /// <summary>Makes the passes that are asked for, and says `waits` before the first one.</summary>
        public static void Make(string folder, Action pass, Action<TextWriter> print)
        {
            Console.WriteLine("waits");
            for (int number = 1; !File.Exists(Path.Combine(folder, "end")); )
            {
                if (File.Exists(Path.Combine(folder, "go-" + number)))
                {
                    pass();
                    using (var said = new StreamWriter(Path.Combine(folder, "said-" + number)))
                    {
                        print(said);
                    }
                    Console.WriteLine("passed " + number);
                    number++;
                }
                Thread.Sleep(1);
            }
        }
    }
}
