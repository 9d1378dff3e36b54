using System;
using System.Runtime.CompilerServices;
using System.Threading;
using System.Threading.Tasks;

namespace Workloads
{
    /// <summary>
    /// Plain work on the pool in a program without one async method: what runs a task is the runtime's precompiled code from the first
    /// to the last one, of which there are few. Each round waits for its two tasks, and has a method of its own, so that something is
    /// compiled in each.
    /// </summary>
    public static class Tasks
    {
        private static readonly Func<long>[] Fresh =
        {
            One, Two, Three, Four, Five, Six, Seven, Eight, Nine, Ten, Eleven, Twelve, Thirteen, Fourteen, Fifteen, Sixteen,
        };

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var check = new Checked("checksum");
            foreach (Func<long> fresh in Fresh)
            {
                Task<long> left = Task.Run(() => Left());
                Task<long> right = Task.Run(() => Right());
                Thread.Sleep(40);
                long one = fresh();
                Task.WaitAll(left, right);
                check.Add(left.Result + right.Result + one);
            }
            check.Print();
            run.End();
            return 0;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Left() => Burn(3);

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Right() => Burn(5);

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long Burn(long seed)
        {
            long sum = seed;
            for (int i = 0; i < 100_000_000; i++)
            {
                sum = unchecked(((sum * 31) ^ i) & 0xffffffff);
            }
            return sum;
        }

        private static long One() => 1;

        private static long Two() => 1;

        private static long Three() => 1;

        private static long Four() => 1;

        private static long Five() => 1;

        private static long Six() => 1;

        private static long Seven() => 1;

        private static long Eight() => 1;

        private static long Nine() => 1;

        private static long Ten() => 1;

        private static long Eleven() => 1;

        private static long Twelve() => 1;

        private static long Thirteen() => 1;

        private static long Fourteen() => 1;

        private static long Fifteen() => 1;

        private static long Sixteen() => 1;
    }
}
