using System;
using System.Diagnostics;
using System.Globalization;
using System.Runtime.CompilerServices;
using System.Threading;

namespace Workloads
{
    /// <summary>
    /// Burns for two seconds in one method, waits for one, burns for two in another one, while a thread
    /// collects garbage every half second. Says when each phase was, by the clock on the wall, and how long the
    /// machine let it stand at most while it burned: time that no clock of the thread knows of.
    /// </summary>
    public static class Phases
    {
        private static volatile bool over;

        private static long lastLook;
        private static long longestGap;

        public static int Main(string[] args)
        {
            var collector = new Thread(Collect) { Name = "collector" };
            collector.Start();
            Timed("BurnFirst", () => BurnFirst(2000));
            Timed("WaitBetween", () => WaitBetween(1000));
            Timed("BurnSecond", () => BurnSecond(2000));
            over = true;
            collector.Join();
            double gap = longestGap * 1000.0 / Stopwatch.Frequency;
            Run.Measured("longest_gap_ms", gap.ToString("F3", CultureInfo.InvariantCulture));
            return 0;
        }

        private static void Timed(string name, Action phase)
        {
            DateTime from = DateTime.UtcNow;
            lastLook = Stopwatch.GetTimestamp();
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
                Look();
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void BurnSecond(int milliseconds)
        {
            var watch = Stopwatch.StartNew();
            while (watch.ElapsedMilliseconds < milliseconds)
            {
                Work();
                Look();
            }
        }

        private static void Look()
        {
            long now = Stopwatch.GetTimestamp();
            longestGap = Math.Max(longestGap, now - lastLook);
            lastLook = now;
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
