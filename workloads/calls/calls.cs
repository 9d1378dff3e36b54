using System;
using System.Diagnostics;
using System.Globalization;
using System.Runtime.CompilerServices;

namespace Workloads
{
    /// <summary>
    /// Calls that use every register of the calling convention: six integer
    /// and eight floating arguments, structs returned in each way, a tail
    /// call. A hook that changes a register changes a `result` line. Prints
    /// `measured ns_per_call` for an empty method.
    /// </summary>
    public static class Calls
    {
        private const int Rounds = 5_000;

        public struct Integers
        {
            public long A;
            public long B;
        }

        public struct Floats
        {
            public double A;
            public double B;
        }

        public struct Both
        {
            public long A;
            public double B;
        }

        public struct Large
        {
            public long A;
            public long B;
            public long C;
        }

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var sum = new Checked("checksum");
            while (run.More())
            {
                sum.Add(Round());
            }
            sum.Print();
            Console.WriteLine("result mixed " + Mixed(1, 2, 3, 4, 5, 6, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5).ToString("R", CultureInfo.InvariantCulture));
            double best = double.MaxValue;
            for (int i = 0; i < 20; i++)
            {
                best = Math.Min(best, Time(100_000));
            }
            Console.WriteLine("measured ns_per_call " + best.ToString("F3", CultureInfo.InvariantCulture));
            run.End();
            return 0;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Round()
        {
            double x = 1;
            long y = 1;
            for (int i = 0; i < Rounds; i++)
            {
                x = Mixed(y, i, 3, 4, 5, 6, x, i, 0.25, 4, 5, 6, 7, 8) % 1000;
                Integers integers = ReturnsIntegers(y, i);
                Floats floats = ReturnsFloats(x, i);
                Both both = ReturnsBoth(y, x);
                Large large = ReturnsLarge(y, i, 3);
                y = (integers.A * 31 + integers.B) ^ (long)floats.A ^ (long)floats.B ^ both.A ^ (long)both.B ^ large.A ^ large.B ^ large.C;
                y = First(y & 0xffff_ffff, 7, 11);
            }
            return y ^ (long)(x * 1000);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static double Mixed(long a, long b, long c, long d, long e, long f, double g, double h, double i, double j, double k, double l, double m, double n)
        {
            return a * 2 + b * 3 + c * 5 + d * 7 + e * 11 + f * 13 + g * 17 + h * 19 + i * 23 + j * 29 + k * 31 + l * 37 + m * 41 + n * 43;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static Integers ReturnsIntegers(long a, long b)
        {
            return new Integers { A = a + 1, B = b * 3 };
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static Floats ReturnsFloats(double a, double b)
        {
            return new Floats { A = a * 2, B = b + 0.5 };
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static Both ReturnsBoth(long a, double b)
        {
            return new Both { A = a ^ 0x55, B = b * 3 };
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static Large ReturnsLarge(long a, long b, long c)
        {
            return new Large { A = a, B = b * 5, C = c + a };
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long First(long a, long b, long c)
        {
            return Second(c, a, b);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Second(long a, long b, long c)
        {
            return a * 3 + b * 5 + c * 7;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void Empty()
        {
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static double Time(int calls)
        {
            var watch = Stopwatch.StartNew();
            for (int i = 0; i < calls; i++)
            {
                Empty();
            }
            return watch.Elapsed.TotalMilliseconds * 1e6 / calls;
        }
    }
}
