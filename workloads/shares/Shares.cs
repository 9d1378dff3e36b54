using System;
using System.Runtime.CompilerServices;
using System.Threading;

namespace Workloads
{
    /// <summary>
    /// Methods that each burn a share of CPU time. The program measures each
    /// call by the thread's CPU clock and prints the shares of what all rounds
    /// took, so a profiler's shares below <see cref="Rounds"/> can be compared
    /// with the kernel's. With the argument `threads` four threads do so at
    /// once, and the shares are of all four.
    /// </summary>
    public static class Shares
    {
        private const int Unit = 20_000;
        private static readonly string[] Names = { "BurnHalf", "BurnQuarter", "BurnFifth", "BurnTwentieth" };

        public static int Main(string[] args)
        {
            var run = new Run(args);
            int threads = Array.IndexOf(args, "threads") >= 0 ? 4 : 1;
            var results = new long[threads][];
            if (threads == 1)
            {
                results[0] = Rounds(run);
            }
            else
            {
                var all = new Thread[threads];
                for (int i = 0; i < threads; i++)
                {
                    int index = i;
                    all[i] = new Thread(() => results[index] = Rounds(run)) { Name = "shares-" + i };
                    all[i].Start();
                }
                foreach (Thread thread in all)
                {
                    thread.Join();
                }
            }
            Report(results);
            run.End();
            return 0;
        }

        private static void Report(long[][] results)
        {
            double total = 0;
            foreach (long[] result in results)
            {
                total += result[4];
            }
            for (int i = 0; i < Names.Length; i++)
            {
                double own = 0;
                foreach (long[] result in results)
                {
                    own += result[i];
                }
                Run.Share("Workloads.Shares." + Names[i], own * 100 / total);
            }
            foreach (long[] result in results)
            {
                Run.Result("checksum", result[5].ToString("x16"));
            }
        }

        /// <summary>Nanoseconds in each method, in total, and the checksum of one round.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long[] Rounds(Run run)
        {
            var spent = new long[6];
            long start = Clock.ThreadCpu();
            long before = start;
            while (true)
            {
                bool more;
                lock (run)
                {
                    more = run.More();
                }
                if (!more)
                {
                    break;
                }
                uint a = BurnHalf(1, 50 * Unit);
                long after = Clock.ThreadCpu();
                spent[0] += after - before;
                uint b = BurnQuarter(a, 25 * Unit);
                before = Clock.ThreadCpu();
                spent[1] += before - after;
                uint c = BurnFifth(b, 20 * Unit);
                after = Clock.ThreadCpu();
                spent[2] += after - before;
                uint d = BurnTwentieth(c, 5 * Unit);
                before = Clock.ThreadCpu();
                spent[3] += before - after;
                long sum = ((long)a << 32) ^ ((long)b << 20) ^ ((long)c << 10) ^ d;
                if (spent[5] != 0 && spent[5] != sum)
                {
                    throw new InvalidOperationException("a round computed something else");
                }
                spent[5] = sum;
            }
            spent[4] = Clock.ThreadCpu() - start;
            return spent;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static uint BurnHalf(uint x, int n)
        {
            for (int i = 0; i < n; i++)
            {
                x = x * 1664525 + 1013904223;
                x ^= x >> 13;
            }
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static uint BurnQuarter(uint x, int n)
        {
            for (int i = 0; i < n; i++)
            {
                x = x * 22695477 + 1;
                x ^= x >> 15;
            }
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static uint BurnFifth(uint x, int n)
        {
            for (int i = 0; i < n; i++)
            {
                x = x * 69069 + 12345;
                x ^= x >> 11;
            }
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static uint BurnTwentieth(uint x, int n)
        {
            for (int i = 0; i < n; i++)
            {
                x = x * 214013 + 2531011;
                x ^= x >> 9;
            }
            return x;
        }
    }
}
