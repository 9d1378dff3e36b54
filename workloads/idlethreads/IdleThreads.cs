using System;
using System.Globalization;
using System.Runtime.CompilerServices;
using System.Threading;

namespace Workloads
{
    /// <summary>
    /// Threads that sleep (threads=N, default 1,000) while the main thread
    /// waits too: what the process takes of a processor is what is added to it.
    /// </summary>
    public static class IdleThreads
    {
        private static readonly ManualResetEventSlim Leave = new ManualResetEventSlim(false, 0);
        private static int slept;

        public static int Main(string[] args)
        {
            int threads = 1000;
            double seconds = 2;
            foreach (string arg in args)
            {
                if (arg.StartsWith("threads=", StringComparison.Ordinal))
                {
                    threads = int.Parse(arg.Substring(8), CultureInfo.InvariantCulture);
                }
                else if (char.IsDigit(arg[0]))
                {
                    seconds = double.Parse(arg, CultureInfo.InvariantCulture);
                }
            }
            var run = new Run(args);
            var all = new Thread[threads];
            for (int i = 0; i < threads; i++)
            {
                all[i] = new Thread(SleepUntilTold, 128 * 1024);
                all[i].Start();
            }
            while (Volatile.Read(ref slept) < threads)
            {
                Thread.Yield();
            }
            // Only what happens while all of them sleep is measured.
            long cpu = Clock.ProcessCpu();
            Thread.Sleep(TimeSpan.FromSeconds(seconds));
            double idle = (Clock.ProcessCpu() - cpu) / 1e6;
            Leave.Set();
            foreach (Thread thread in all)
            {
                thread.Join();
            }
            Run.Result("slept", slept);
            Run.Measured("idle_cpu_ms", idle.ToString("F3", CultureInfo.InvariantCulture));
            Run.Measured("idle_ms", (seconds * 1000).ToString("F3", CultureInfo.InvariantCulture));
            run.End();
            return 0;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void SleepUntilTold()
        {
            Interlocked.Increment(ref slept);
            Leave.Wait();
        }
    }
}
