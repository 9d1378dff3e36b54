using System;
using System.Runtime.CompilerServices;

namespace Workloads
{
    /// <summary>
    /// A program that runs and does nothing until its input ends: for what is
    /// done to a running process. Prints `ready` when it runs.
    /// </summary>
    public static class Waits
    {
        public static int Main(string[] args)
        {
            Console.WriteLine("ready");
            WaitForTheEndOfInput();
            Run.Result("ended", "by its input");
            return 0;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void WaitForTheEndOfInput()
        {
            while (Console.In.ReadLine() != null)
            {
            }
        }
    }
}
