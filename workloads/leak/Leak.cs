using System;
using System.Globalization;
using System.Runtime.CompilerServices;
using System.Threading;
using System.Threading.Tasks;

namespace Workloads
{
    /// <summary>
    /// Keeps objects of some types for ever, drops those of others, and counts both. What is dropped is collected, every
    /// half second and at the end.
    ///
    /// rate=N: megabytes that are kept each second (default 10); ten times as much is dropped.
    /// </summary>
    public static class Leak
    {
        /// <summary>Kept, one after the other: each knows the one before.</summary>
        public sealed class Kept
        {
            public Kept Before;
            public long A, B, C, D, E;
        }

        /// <summary>Kept since before the first round.</summary>
        public sealed class Early
        {
            public Early Before;
            public long A, B, C, D, E;
        }

        /// <summary>Kept by an async method that has been resumed.</summary>
        public sealed class KeptLater
        {
            public KeptLater Before;
            public long A, B, C, D, E;
        }

        public sealed class Dropped
        {
            public Dropped Other;
            public long A, B, C, D, E;
        }

        private const long EarlyBytes = 32L << 20;
        private const int LargeElements = 20_000;

        private static readonly long Size = Run.ObjectSize(6 * 8);
        private static readonly long LargeSize = Run.ArraySize(LargeElements * 8);

        private static Kept kept;
        private static Early early;
        private static KeptLater keptLater;
        /// <summary>Made before anything is measured: a list that grows would be an allocation too.</summary>
        private static object[] keptLarge = new object[100_000];
        private static int large;
        private static long later;
        private static object last;

        public static int Main(string[] args)
        {
            var run = new Run(args);
            long rate = 10;
            foreach (string arg in args)
            {
                if (arg.StartsWith("rate=", StringComparison.Ordinal))
                {
                    rate = long.Parse(arg.Substring(5), CultureInfo.InvariantCulture);
                }
            }
            long before = EarlyBytes / Size;
            KeepEarly(before);
            long objects = 0, dropped = 0, droppedLarge = 0, collections = 0;
            // A round is a fiftieth of a second at this rate, or longer where the machine is busy.
            long each = (rate << 20) / 50 / 3;
            var clock = System.Diagnostics.Stopwatch.StartNew();
            long rounds = 0;
            while (run.More())
            {
                Keep(each / Size);
                objects += each / Size;
                // Large ones come as often as their bytes say.
                while (large * LargeSize < rounds * each && large < keptLarge.Length)
                {
                    KeepLarge();
                }
                KeepByTask(each / Size).GetAwaiter().GetResult();
                Drop(15 * each / Size);
                dropped += 15 * each / Size;
                for (long bytes = 0; bytes < 15 * each; bytes += LargeSize)
                {
                    DropLarge();
                    droppedLarge++;
                }
                if (++rounds % 25 == 0)
                {
                    GC.Collect();
                    collections++;
                }
                long ahead = rounds * 20 - clock.ElapsedMilliseconds;
                if (ahead > 0)
                {
                    Thread.Sleep((int)ahead);
                }
            }
            last = null;
            GC.Collect();
            GC.WaitForPendingFinalizers();
            GC.Collect();
            Print("kept", "Workloads.Leak+Early", before * Size);
            Print("kept", "Workloads.Leak+Kept", objects * Size);
            Print("kept", "Workloads.Leak+KeptLater", later * Size);
            Print("kept", "System.Int64[]", large * LargeSize);
            Print("dropped", "Workloads.Leak+Dropped", dropped * Size);
            Print("dropped", "System.Double[]", droppedLarge * LargeSize);
            Run.Measured("collections", collections);
            run.End();
            GC.KeepAlive(kept);
            GC.KeepAlive(early);
            GC.KeepAlive(keptLater);
            return 0;
        }

        private static void Print(string what, string type, long bytes)
        {
            Console.WriteLine(string.Format(CultureInfo.InvariantCulture, "{0} {1} {2}", what, type, bytes));
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void KeepEarly(long count)
        {
            for (long i = 0; i < count; i++)
            {
                early = new Early { Before = early, A = i };
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void Keep(long count)
        {
            for (long i = 0; i < count; i++)
            {
                kept = new Kept { Before = kept, A = i };
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void KeepLarge()
        {
            keptLarge[large++] = new long[LargeElements];
        }

        private static async Task KeepByTask(long count)
        {
            await KeepLater(count);
        }

        private static async Task KeepLater(long count)
        {
            // So long that whoever awaits this does.
            await Task.Delay(1);
            for (long i = 0; i < count; i++)
            {
                keptLater = new KeptLater { Before = keptLater, A = i };
            }
            later += count;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void Drop(long count)
        {
            Dropped other = null;
            for (long i = 0; i < count; i++)
            {
                other = new Dropped { Other = i % 16 == 0 ? null : other, A = i };
            }
            last = other;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void DropLarge()
        {
            last = new double[LargeElements];
        }
    }
}
