using System;
using System.Runtime.CompilerServices;
using System.Threading;

namespace Workloads
{
    /// <summary>Threads that live for a millisecond, four at a time.</summary>
    public static class Churn
    {
        public static int Main(string[] args)
        {
            var run = new Run(args);
            var check = new Checked("checksum");
            Console.WriteLine("method Workloads.Churn.BurnShortly");
            long threads = 0;
            while (run.More())
            {
                var sums = new uint[4];
                var four = new Thread[4];
                for (int i = 0; i < four.Length; i++)
                {
                    int index = i;
                    four[i] = new Thread(() => sums[index] = BurnShortly((uint)index + 1)) { Name = "churn-" + index };
                    four[i].Start();
                }
                long sum = 0;
                for (int i = 0; i < four.Length; i++)
                {
                    four[i].Join();
                    sum = sum * 31 + sums[i];
                }
                check.Add(sum);
                threads += four.Length;
            }
            check.Print();
            Run.Measured("threads", threads);
            run.End();
            return 0;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static uint BurnShortly(uint x)
        {
            for (int i = 0; i < 500_000; i++)
            {
                x = x * 1664525 + 1013904223;
                x ^= x >> 13;
            }
            return x;
        }
    }
}
