using System;
using System.Diagnostics;
using System.Globalization;
using System.IO;
using System.Runtime.CompilerServices;
using System.Threading;

namespace Workloads
{
    /// <summary>
    /// Burns for two seconds in one method, waits for one, burns for two in another one, while a thread
    /// collects garbage every half second. Says when each phase was, by the clock on the wall, and for how
    /// long it burned at most without being on a processor or in the queue for one, by the kernel's word.
    /// </summary>
    public static class Phases
    {
        private static volatile bool over;

        private static double longestUnknown;

        public static int Main(string[] args)
        {
            var collector = new Thread(Collect) { Name = "collector" };
            collector.Start();
            Timed("BurnFirst", () => Burning(() => BurnFirst(2000)));
            Timed("WaitBetween", () => WaitBetween(1000));
            Timed("BurnSecond", () => Burning(() => BurnSecond(2000)));
            over = true;
            collector.Join();
            Run.Measured("longest_unknown_ms", longestUnknown.ToString("F3", CultureInfo.InvariantCulture));
            return 0;
        }

        private static void Timed(string name, Action phase)
        {
            DateTime from = DateTime.UtcNow;
            phase();
            DateTime to = DateTime.UtcNow;
            Console.WriteLine(string.Format(CultureInfo.InvariantCulture, "phase {0} {1:HH:mm:ss.fff} {2:HH:mm:ss.fff}", name, from, to));
        }

        private static void Collect()
        {
            int count = 0;
            var watch = Stopwatch.StartNew();
            while (!over)
            {
                long wait = 500 * (count + 1) - watch.ElapsedMilliseconds;
                if (wait > 0)
                {
                    Thread.Sleep((int)wait);
                }
                GC.Collect();
                count++;
            }
            Run.Measured("collections", count);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void BurnFirst(int milliseconds)
        {
            var watch = Stopwatch.StartNew();
            while (watch.ElapsedMilliseconds < milliseconds)
            {
                Work();
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void BurnSecond(int milliseconds)
        {
            var watch = Stopwatch.StartNew();
            while (watch.ElapsedMilliseconds < milliseconds)
            {
                Work();
            }
        }

        private static void Burning(Action phase)
        {
            double before = Unknown();
            phase();
            longestUnknown = Math.Max(longestUnknown, Unknown() - before);
        }

        /// <summary>
        /// Milliseconds, from some time on, that are in neither clock of this thread: a hypervisor's, or its waits.
        /// </summary>
        private static double Unknown()
        {
            string[] known = File.ReadAllText("/proc/thread-self/schedstat").Split(' ');
            double ran = double.Parse(known[0], CultureInfo.InvariantCulture);
            double queued = double.Parse(known[1], CultureInfo.InvariantCulture);
            return Stopwatch.GetTimestamp() * 1000.0 / Stopwatch.Frequency - (ran + queued) / 1e6;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void WaitBetween(int milliseconds) => Thread.Sleep(milliseconds);

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int Work()
        {
            int value = 1;
            for (int i = 0; i < 20000; i++)
            {
                value = value * 31 + i;
            }
            return value;
        }
    }
}
