using System;
using System.Collections.Generic;
using System.Runtime.CompilerServices;
using System.Threading.Tasks;

namespace Workloads
{
    /// <summary>
    /// Methods that the compiler rewrites: async methods, an iterator, a
    /// lambda and a local function. Each burns by itself, so that a report
    /// must show the method that was written: prints `method NAME` for each.
    /// </summary>
    public static class Async
    {
        private const int Turns = 400_000;

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var check = new Checked("checksum");
            foreach (string name in new[] { "OuterAsync", "InnerAsync", "IterateBurning", "BurnInLambda", "BurnInLocalFunction" })
            {
                Console.WriteLine("method Workloads.Async." + name);
            }
            while (run.More())
            {
                long sum = OuterAsync(1).GetAwaiter().GetResult();
                foreach (long item in IterateBurning(3))
                {
                    sum = sum * 31 + item;
                }
                sum ^= BurnInLambda(Turns);
                sum ^= BurnInLocalFunction(Turns);
                check.Add(sum);
            }
            check.Print();
            run.End();
            return 0;
        }

        private static async Task<long> OuterAsync(long x)
        {
            await Task.Yield();
            for (int i = 0; i < Turns; i++)
            {
                x = x * 31 + i;
                x ^= x >> 7;
            }
            long inner = await InnerAsync(x).ConfigureAwait(false);
            return x ^ inner;
        }

        private static async Task<long> InnerAsync(long x)
        {
            await Task.Yield();
            for (int i = 0; i < Turns; i++)
            {
                x = x * 37 + i;
                x ^= x >> 9;
            }
            return x;
        }

        private static IEnumerable<long> IterateBurning(int items)
        {
            for (int item = 0; item < items; item++)
            {
                long x = item;
                for (int i = 0; i < Turns / 3; i++)
                {
                    x = x * 41 + i;
                    x ^= x >> 11;
                }
                yield return x;
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnInLambda(int turns)
        {
            Func<int, long> burn = n =>
            {
                long x = n;
                for (int i = 0; i < n; i++)
                {
                    x = x * 43 + i;
                    x ^= x >> 13;
                }
                return x;
            };
            return burn(turns) + 1;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnInLocalFunction(int turns)
        {
            return Burning(turns) + 1;

            [MethodImpl(MethodImplOptions.NoInlining)]
            static long Burning(int n)
            {
                long x = n;
                for (int i = 0; i < n; i++)
                {
                    x = x * 47 + i;
                    x ^= x >> 5;
                }
                return x;
            }
        }
    }
}
