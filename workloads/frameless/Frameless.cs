using System;
using System.Runtime.CompilerServices;

namespace Workloads
{
    /// <summary>
    /// Chains of small optimised methods that make one call each. The JIT
    /// gives such a method no frame, so that a walk by frame pointers loses
    /// its caller. `Plain` keeps nothing across its call, `Keeps` a value (a
    /// register is pushed), `Wide` passes arguments on the stack; those of
    /// `Eager` are optimised before their first call. Prints each pair as
    /// `caller CALLEE CALLER`.
    /// </summary>
    public static class Frameless
    {
        private const int Calls = 20_000;

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var sum = new Checked("checksum");
            foreach (string chain in new[] { "Plain", "Keeps", "Wide", "Eager" })
            {
                Pair(chain + "1", "Calls" + chain);
                for (int i = 2; i <= 6; i++)
                {
                    Pair(chain + i, chain + (i - 1));
                }
                Pair("Calls" + chain, "FramelessRound");
            }
            while (run.More())
            {
                sum.Add(FramelessRound());
            }
            sum.Print();
            run.End();
            return 0;
        }

        private static void Pair(string callee, string caller)
        {
            Console.WriteLine("caller Workloads.Frameless." + callee + " Workloads.Frameless." + caller);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long FramelessRound()
        {
            return CallsPlain(Calls) ^ CallsKeeps(Calls) ^ CallsWide(Calls) ^ CallsEager(Calls);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long CallsPlain(int n)
        {
            long x = 1;
            for (int i = 0; i < n; i++)
            {
                x += Plain1(i);
            }
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int Plain1(int x)
        {
            return Plain2(x + 1) + 1;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int Plain2(int x)
        {
            return Plain3(x + 2) + 1;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int Plain3(int x)
        {
            return Plain4(x + 3) + 1;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int Plain4(int x)
        {
            return Plain5(x + 4) + 1;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int Plain5(int x)
        {
            return Plain6(x + 5) + 1;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int Plain6(int x)
        {
            return x ^ 21;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long CallsKeeps(int n)
        {
            long x = 1;
            for (int i = 0; i < n; i++)
            {
                x += Keeps1(i, x);
            }
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Keeps1(long x, long y)
        {
            long kept = x * 3;
            return Keeps2(y, x) + kept;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Keeps2(long x, long y)
        {
            long kept = x * 5;
            return Keeps3(y, x) + kept;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Keeps3(long x, long y)
        {
            long kept = x * 7;
            return Keeps4(y, x) + kept;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Keeps4(long x, long y)
        {
            long kept = x * 9;
            return Keeps5(y, x) + kept;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Keeps5(long x, long y)
        {
            long kept = x * 11;
            return Keeps6(y, x) + kept;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Keeps6(long x, long y)
        {
            return x - y;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long CallsWide(int n)
        {
            long x = 1;
            for (int i = 0; i < n; i++)
            {
                x += Wide1(i, 2, 3, 4, 5, 6, 7, i);
            }
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Wide1(long a, long b, long c, long d, long e, long f, long g, long h)
        {
            return Wide2(h, a, b, c, d, e, f, g) + 1;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Wide2(long a, long b, long c, long d, long e, long f, long g, long h)
        {
            return Wide3(h, a, b, c, d, e, f, g) + 2;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Wide3(long a, long b, long c, long d, long e, long f, long g, long h)
        {
            return Wide4(h, a, b, c, d, e, f, g) + 3;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Wide4(long a, long b, long c, long d, long e, long f, long g, long h)
        {
            return Wide5(h, a, b, c, d, e, f, g) + 4;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Wide5(long a, long b, long c, long d, long e, long f, long g, long h)
        {
            return Wide6(h, a, b, c, d, e, f, g) + 5;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Wide6(long a, long b, long c, long d, long e, long f, long g, long h)
        {
            return a + b * c + d * e + f * g + h;
        }

        [MethodImpl(MethodImplOptions.NoInlining | MethodImplOptions.AggressiveOptimization)]
        private static long CallsEager(int n)
        {
            long x = 1;
            for (int i = 0; i < n; i++)
            {
                x += Eager1(i);
            }
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining | MethodImplOptions.AggressiveOptimization)]
        private static int Eager1(int x)
        {
            return Eager2(x + 1) * 3;
        }

        [MethodImpl(MethodImplOptions.NoInlining | MethodImplOptions.AggressiveOptimization)]
        private static int Eager2(int x)
        {
            return Eager3(x + 2) * 3;
        }

        [MethodImpl(MethodImplOptions.NoInlining | MethodImplOptions.AggressiveOptimization)]
        private static int Eager3(int x)
        {
            return Eager4(x + 3) * 3;
        }

        [MethodImpl(MethodImplOptions.NoInlining | MethodImplOptions.AggressiveOptimization)]
        private static int Eager4(int x)
        {
            return Eager5(x + 4) * 3;
        }

        [MethodImpl(MethodImplOptions.NoInlining | MethodImplOptions.AggressiveOptimization)]
        private static int Eager5(int x)
        {
            return Eager6(x + 5) * 3;
        }

        [MethodImpl(MethodImplOptions.NoInlining | MethodImplOptions.AggressiveOptimization)]
        private static int Eager6(int x)
        {
            return x ^ 42;
        }
    }
}
