using System;
using System.Diagnostics;
using System.Globalization;
using System.Runtime.CompilerServices;
using System.Threading;

namespace Workloads
{
    /// <summary>
    /// Burns for two seconds in one method, waits for one, burns for two in another one, while a thread
    /// collects garbage every half second. Says when each phase was, by the clock on the wall.
    /// </summary>
    public static class Phases
    {
        private static volatile bool over;

        public static int Main(string[] args)
        {
            var collector = new Thread(Collect) { Name = "collector" };
            collector.Start();
            Timed("BurnFirst", () => BurnFirst(2000));
            Timed("WaitBetween", () => WaitBetween(1000));
            Timed("BurnSecond", () => BurnSecond(2000));
            over = true;
            collector.Join();
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
