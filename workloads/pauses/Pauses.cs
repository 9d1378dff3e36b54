using System;
using System.Diagnostics;
using System.Globalization;
using System.Runtime.CompilerServices;
using System.Threading;

namespace Workloads
{
    /// <summary>
    /// A thread that loops without a call, so that a garbage collection must
    /// interrupt it, and collections. Prints the median and the longest time
    /// that `GC.Collect` took. rounds=N gives the number of collections.
    ///
    /// With `meet=DIR:N` it measures while N of them loop. With `alone` there is no such thread.
    /// </summary>
    public static class Pauses
    {
        private static volatile bool over;

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var looping = new ManualResetEventSlim();
            uint sum = 0;
            var loop = new Thread(() =>
            {
                // Optimised code, without the polls of an unoptimised loop.
                for (int i = 0; i < 100; i++)
                {
                    Thread.Sleep(i % 10 == 0 ? 1 : 0);
                    sum += TightLoop(1);
                }
                looping.Set();
                while (!over)
                {
                    sum += TightLoop(200_000_000);
                }
            })
            { Name = "tight-loop" };
            bool alone = Array.IndexOf(args, "alone") >= 0;
            if (!alone)
            {
                loop.Start();
                looping.Wait();
            }
            run.Meet("loop");
            var times = new System.Collections.Generic.List<double>();
            // Others may have had the processors for all the time: one is measured all the same.
            while (run.More() || times.Count == 0)
            {
                long before = Stopwatch.GetTimestamp();
                GC.Collect();
                times.Add((Stopwatch.GetTimestamp() - before) * 1000.0 / Stopwatch.Frequency);
            }
            run.Meet("done");
            over = true;
            if (!alone)
            {
                loop.Join();
            }
            times.Sort();
            Run.Measured("collections", times.Count);
            Run.Measured("median_ms", times[times.Count / 2].ToString("F3", CultureInfo.InvariantCulture));
            Run.Measured("longest_ms", times[times.Count - 1].ToString("F3", CultureInfo.InvariantCulture));
            run.End();
            return sum == 1 ? 1 : 0;
        }

        [MethodImpl(MethodImplOptions.NoInlining | MethodImplOptions.AggressiveOptimization)]
        private static uint TightLoop(int n)
        {
            uint x = 1;
            for (int i = 0; i < n; i++)
            {
                x = x * 1664525 + 1013904223;
                x ^= x >> 13;
            }
            return x;
        }
    }
}
