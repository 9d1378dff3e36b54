using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Globalization;
using System.Runtime.CompilerServices;
using System.Threading;

namespace Workloads
{
    /// <summary>
    /// Threads that wait for one lock, and measure how long.
    /// </summary>
    public static class Contention
    {
        private const int Threads = 3;

        private static readonly object Gate = new object();

        public static int Main(string[] args)
        {
            var run = new Run(args);
            Console.WriteLine("method Workloads.Contention.WaitForGate");
            var waited = new long[Threads];
            var entered = new long[Threads];
            var threads = new List<Thread>();
            for (int i = 0; i < Threads; i++)
            {
                int own = i;
                var thread = new Thread(() =>
                {
                    while (!run.Over)
                    {
                        waited[own] += WaitForGate();
                        entered[own]++;
                    }
                })
                { Name = "contention-" + i.ToString(CultureInfo.InvariantCulture) };
                threads.Add(thread);
                thread.Start();
            }
            while (run.More())
            {
                Thread.Sleep(10);
            }
            long ticks = 0;
            long entries = 0;
            for (int i = 0; i < Threads; i++)
            {
                threads[i].Join();
                ticks += waited[i];
                entries += entered[i];
            }
            Run.Measured("entries", entries);
            Run.Measured("waited_ms", (ticks * 1000.0 / Stopwatch.Frequency).ToString("F3", CultureInfo.InvariantCulture));
            run.End();
            return 0;
        }

        /// <summary>Enters, holds the lock for some milliseconds, and says how long it waited.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long WaitForGate()
        {
            long start = Stopwatch.GetTimestamp();
            Monitor.Enter(Gate);
            long waited = Stopwatch.GetTimestamp() - start;
            try
            {
                Thread.Sleep(4);
            }
            finally
            {
                Monitor.Exit(Gate);
            }
            return waited;
        }
    }
}
