using System;
using System.Runtime.CompilerServices;
using System.Threading.Tasks;

namespace Workloads
{
    /// <summary>
    /// Async methods without tasks: their boxes are used again and again. Prints `chain LEAF CALLER…` for each leaf, as asyncchains does.
    /// </summary>
    public static class AsyncPooled
    {
        private const int Turns = 1_500_000;

        private static volatile TaskCompletionSource<bool> gate;
        private static long value;

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var check = new Checked("checksum");
            Tell("BurnValue", "ValueInner", "ValueMiddle", "ValueRoot");
            Tell("BurnPlain", "PlainInner", "PlainMiddle", "PlainRoot");
            Tell("BurnBelow", "BelowInner", "BelowMiddle", "BelowRoot");
            Tell("BurnOnce", "Once", "OnceRoot");
            while (run.More())
            {
                long sum = 0;
                foreach (Func<Task<long>> root in new Func<Task<long>>[] { ValueRoot, PlainRoot, BelowRoot, OnceRoot })
                {
                    gate = new TaskCompletionSource<bool>(TaskCreationOptions.RunContinuationsAsynchronously);
                    Task<long> task = root();
                    // All who await do by now.
                    gate.SetResult(true);
                    sum = sum * 31 + task.GetAwaiter().GetResult();
                }
                check.Add(sum);
            }
            check.Print();
            run.End();
            return 0;
        }

        private static void Tell(string leaf, params string[] callers)
        {
            string told = "";
            foreach (string caller in callers)
            {
                told += " Workloads.AsyncPooled." + caller;
            }
            Console.WriteLine("chain Workloads.AsyncPooled." + leaf + told);
        }

        private static async Task<long> ValueRoot() => await ValueMiddle() + 1;

        [AsyncMethodBuilder(typeof(PoolingAsyncValueTaskMethodBuilder<>))]
        private static async ValueTask<long> ValueMiddle() => await ValueInner().ConfigureAwait(false) + 1;

        [AsyncMethodBuilder(typeof(PoolingAsyncValueTaskMethodBuilder<>))]
        private static async ValueTask<long> ValueInner()
        {
            await gate.Task;
            return BurnValue() + 1;
        }

        private static async Task<long> PlainRoot()
        {
            await PlainMiddle();
            return value;
        }

        [AsyncMethodBuilder(typeof(PoolingAsyncValueTaskMethodBuilder))]
        private static async ValueTask PlainMiddle() => await PlainInner();

        [AsyncMethodBuilder(typeof(PoolingAsyncValueTaskMethodBuilder))]
        private static async ValueTask PlainInner()
        {
            await gate.Task.ConfigureAwait(false);
            value = BurnPlain();
        }

        /// <summary>One without a task between two with one.</summary>
        private static async Task<long> BelowRoot() => await BelowMiddle() + 1;

        [AsyncMethodBuilder(typeof(PoolingAsyncValueTaskMethodBuilder<>))]
        private static async ValueTask<long> BelowMiddle() => await BelowInner() + 1;

        private static async Task<long> BelowInner()
        {
            await gate.Task;
            return BurnBelow() + 1;
        }

        private static async Task<long> OnceRoot() => (await Once()).Length;

        /// <summary>With a reference for its result.</summary>
        [AsyncMethodBuilder(typeof(PoolingAsyncValueTaskMethodBuilder<>))]
        private static async ValueTask<string> Once()
        {
            await gate.Task;
            return new string('x', (int)(BurnOnce() & 7) + 1);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnValue() => Spin.For(1, Turns) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnPlain() => Spin.For(2, Turns) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnBelow() => Spin.For(3, Turns) + 1;

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long BurnOnce() => Spin.For(4, Turns) + 1;
    }
}
