using System;
using System.Runtime.CompilerServices;

namespace Workloads
{
    /// <summary>
    /// One link of a chain of calls through several CLRs of a process. A host
    /// (`runsxs --chain`) calls <see cref="Step"/> in one CLR; it calls the
    /// host's native function, which calls Step in the other CLR, and so on;
    /// the last Step burns.
    /// </summary>
    public static unsafe class Chain
    {
        /// <summary>A library to the host, and a program to those who start it.</summary>
        public static int Main()
        {
            Console.WriteLine("started by runsxs --chain, not by itself");
            return 1;
        }

        /// <summary>
        /// Goes on over `cross` while `depth` is not 0, else burns for so many
        /// rounds. Answers how many links there were.
        /// </summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        public static long Step(IntPtr cross, IntPtr chain, int depth, int rounds)
        {
            if (depth == 0)
            {
                return Burn(rounds) == 0 ? 0 : 1;
            }
            var next = (delegate* unmanaged[Cdecl]<IntPtr, int, int, long>)cross;
            return next(chain, depth - 1, rounds) + 1;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static uint Burn(int rounds)
        {
            uint x = 1;
            for (int i = 0; i < rounds; i++)
            {
                for (int j = 0; j < 10_000; j++)
                {
                    x = x * 1664525 + 1013904223;
                    x ^= x >> 13;
                }
            }
            return x | 1;
        }
    }
}
