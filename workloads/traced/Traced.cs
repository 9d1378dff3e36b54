using System;
using System.Diagnostics;
using System.IO;
using System.Runtime.CompilerServices;
using System.Threading;

namespace Workloads
{
    public class TracedBox<T>
    {
        private readonly T item;

        public TracedBox(T item)
        {
            this.item = item;
        }

        public T Get()
        {
            return item;
        }
    }

    /// <summary>
    /// Methods whose calls it knows: a tree, recursion, exceptions through
    /// several frames, threads, small methods, generics; and two that know
    /// how long they took. Prints `traced METHOD CALLS ERRORS` of each pass,
    /// `timed METHOD NANOSECONDS…`, each call of the long one, and
    /// `short METHOD NANOSECONDS…`, each call of the short one.
    ///
    /// With passes=N it makes N of them, and prints their sum. With asked=DIR it makes a pass whenever the file DIR/go-N is there,
    /// prints into DIR/said-N, says `passed N`, and ends with DIR/end. unwrapped=N: see <see cref="Unwrapped"/>.
    /// </summary>
    public static class Traced
    {
        private static readonly CallCounts Expected = new CallCounts();
        private static readonly long[] TimedTicks = new long[1000];
        private static int timedCalls;
        private static readonly long[] ShortTicks = new long[10_000];
        private static int shortCalls;
        private static readonly long[] LookTicks = new long[10_000];

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var check = new Checked("checksum");
            string asked = null;
            int passes = 1;
            foreach (string arg in args)
            {
                if (arg.StartsWith("asked=", StringComparison.Ordinal))
                {
                    asked = arg.Substring(6);
                }
                if (arg.StartsWith("passes=", StringComparison.Ordinal))
                {
                    passes = int.Parse(arg.Substring(7));
                }
                if (arg.StartsWith("unwrapped=", StringComparison.Ordinal))
                {
                    Unwrapped.Print(int.Parse(arg.Substring(10)));
                }
            }
            run.Meet("begin");
            if (asked == null)
            {
                for (int i = 0; i < passes; i++)
                {
                    check.Add(Pass());
                }
                Print(Console.Out);
            }
            else
            {
                // As hot as it gets, before anybody comes.
                for (int i = 0; i < 10; i++)
                {
                    check.Add(Pass());
                }
                Forget();
                Passes.Make(
                    asked,
                    () =>
                    {
                        Forget();
                        check.Add(Pass());
                    },
                    Print);
            }
            check.Print();
            run.End();
            return 0;
        }

        private static void Forget()
        {
            Expected.Forget();
            timedCalls = shortCalls = 0;
        }

        private static void Print(TextWriter to)
        {
            Expected.Print(to);
            Print(to, "timed Workloads.Traced.Timed", TimedTicks, timedCalls);
            Print(to, "short Workloads.Traced.Short", ShortTicks, shortCalls);
            Print(to, "looks", LookTicks, shortCalls);
        }

        private static void Print(TextWriter to, string line, long[] ticks, int count)
        {
            double ns = 1e9 / Stopwatch.Frequency;
            for (int i = 0; i < count; i++)
            {
                line += " " + (long)(ticks[i] * ns);
            }
            to.WriteLine(line);
        }

        private static long Pass()
        {
            long sum = Node(6);
            Expected.Add("Traced.Node", 1 + 3 + 9 + 27 + 81 + 243 + 729, 0);
            sum += Recurse(300);
            Expected.Add("Traced.Recurse", 301, 0);
            sum += Exceptions();
            sum += Threads();
            sum += Smalls();
            for (int i = 0; i < 50; i++)
            {
                sum += new TracedBox<int>(i).Get() + new TracedBox<string>("x").Get().Length;
            }
            Expected.Add("TracedBox<_>..ctor", 100, 0);
            Expected.Add("TracedBox<_>.Get", 100, 0);
            for (int i = 0; i < 60; i++)
            {
                Timed(i % 3 == 0 ? 1_000_000 : 400_000);
            }
            Expected.Add("Traced.Timed", 60, 0);
            for (int i = 0; i < 300; i++)
            {
                Short(i % 3 == 0 ? 2_000 : 1_000);
                // What a look at the clock takes here and now.
                long look = Stopwatch.GetTimestamp();
                LookTicks[shortCalls++] = Stopwatch.GetTimestamp() - look;
            }
            Expected.Add("Traced.Short", 300, 0);
            CallsSlow();
            Expected.Add("Traced.CallsSlow", 1, 0);
            Expected.Add("Traced.Slow", 12, 1);
            return sum;
        }

        private static long Node(int depth)
        {
            return depth == 0 ? 1 : Node(depth - 1) + Node(depth - 1) + Node(depth - 1);
        }

        private static long Recurse(int left)
        {
            return left == 0 ? 0 : Recurse(left - 1) + left;
        }

        private static long Exceptions()
        {
            long sum = 0;
            for (int i = 0; i < 100; i++)
            {
                try
                {
                    sum += Outer(i);
                }
                catch (InvalidOperationException)
                {
                    sum += 7;
                }
            }
            Expected.Add("Traced.Outer", 100, 20);
            Expected.Add("Traced.Middle", 100, 25);
            Expected.Add("Traced.Inner", 100, 25);
            return sum;
        }

        /// <summary>Catches what is thrown every twentieth time; the rest goes on.</summary>
        private static int Outer(int i)
        {
            try
            {
                return Middle(i) + 1;
            }
            catch (InvalidOperationException) when (i % 20 == 0)
            {
                return 3;
            }
        }

        private static int Middle(int i)
        {
            try
            {
                return Inner(i) + 1;
            }
            finally
            {
                Interlocked.Increment(ref finallies);
            }
        }

        private static int finallies;

        private static int Inner(int i)
        {
            if (i % 4 == 0)
            {
                throw new InvalidOperationException("every fourth");
            }
            return i;
        }

        private static long Threads()
        {
            long sum = 0;
            var threads = new Thread[4];
            for (int i = 0; i < threads.Length; i++)
            {
                threads[i] = new Thread(() =>
                {
                    long own = 0;
                    for (int n = 0; n < 5_000; n++)
                    {
                        own += Shared(n);
                    }
                    Interlocked.Add(ref sum, own);
                });
                threads[i].Start();
            }
            foreach (Thread thread in threads)
            {
                thread.Join();
            }
            Expected.Add("Traced.Shared", 20_000, 0);
            return sum;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int Shared(int n)
        {
            return n & 7;
        }

        private static long Smalls()
        {
            long sum = 0;
            for (int i = 0; i < 10_000; i++)
            {
                sum = Small(sum);
            }
            Expected.Add("Traced.Small", 10_000, 0);
            return sum;
        }

        /// <summary>It is inlined, unless it is traced.</summary>
        private static long Small(long x)
        {
            return x * 3 + 1;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void Timed(long ns)
        {
            TimedTicks[timedCalls++] = Spin(ns);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void Short(long ns)
        {
            ShortTicks[shortCalls] = Spin(ns);
        }

        private static long Spin(long ns)
        {
            long start = Stopwatch.GetTimestamp();
            long end = start + ns * Stopwatch.Frequency / 1_000_000_000;
            long now;
            do
            {
                now = Stopwatch.GetTimestamp();
            }
            while (now < end);
            return now - start;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void CallsSlow()
        {
            for (int i = 0; i < 12; i++)
            {
                try
                {
                    Slow(i);
                }
                catch (TimeoutException)
                {
                }
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void Slow(int i)
        {
            if (i == 3 || i == 7 || i == 11)
            {
                Thread.Sleep(30);
            }
            if (i == 11)
            {
                throw new TimeoutException("slow and failed");
            }
        }
    }
}
