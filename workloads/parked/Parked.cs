using System;
using System.Collections.Generic;
using System.Linq;
using System.Runtime.CompilerServices;
using System.Threading;
using System.Threading.Tasks;

namespace Workloads
{
    /// <summary>
    /// Async methods that nobody runs: each waits until the program's input ends, and has one chain of methods that
    /// await it. Prints `suspended COUNT LEAF CALLER…` for each chain, `[…]` between methods, then `ready`.
    /// </summary>
    public static class Parked
    {
        private static readonly TaskCompletionSource<long> Gate =
            new TaskCompletionSource<long>(TaskCreationOptions.RunContinuationsAsynchronously);

        public static int Main()
        {
            var all = new List<Task<long>>();
            Add(all, 700, () => DeepTop(1), "DeepLeaf DeepMiddle DeepTop [not awaited]");
            Add(all, 300, () => ValueTop(2), "ValueLeaf ValueTop [not awaited]");
            Add(all, 50, () => TwiceTop(3), "SecondAwait TwiceTop [not awaited]");
            Add(all, 20, () => JoinedTop(4), "Part [WhenAll] JoinedTop [not awaited]", 2);
            Add(all, 30, () => IteratedTop(5), "Iterated IteratedTop [not awaited]");
            Add(all, 10, () => Task.Run(() => StartedTop(6)), "StartedLeaf StartedTop [Task.Run] [not awaited]");
            Add(all, 15, () => ContinuedTop(7), "ContinuedLeaf [ContinueWith] ContinuedTop [not awaited]");
            // What is done is not suspended, and what nobody has is not there.
            List<Task<long>> done = Enumerable.Range(0, 100).Select(_ => DoneTop(8)).ToList();
            Task.WaitAll(done.ToArray());
            DropSome();
            Thread[] waiting = Enumerable.Range(0, 3).Select(_ => new Thread(() => BlockedTop(9).Wait())).ToArray();
            foreach (Thread thread in waiting)
            {
                thread.Start();
            }
            Console.WriteLine("suspended 3 BlockedLeaf BlockedTop [blocking wait]");
            while (Volatile.Read(ref begun) != All || waiting.Any(IsRunning))
            {
                Thread.Yield();
            }
            Console.WriteLine("ready");
            Console.In.ReadToEnd();
            Gate.SetResult(1);
            foreach (Thread thread in waiting)
            {
                thread.Join();
            }
            long sum = all.Concat(done).Aggregate(0L, (sum, task) => sum * 31 + task.Result);
            Console.WriteLine("result " + sum);
            return 0;
        }

        /// <summary>Waits for the gate, counted: 25 are dropped, 3 are waited for.</summary>
        private const int All = 700 + 300 + 50 + 40 + 30 + 10 + 15 + 25 + 3;

        private static int begun;

        private static Task<long> Begun()
        {
            Interlocked.Increment(ref begun);
            return Gate.Task;
        }

        private static bool IsRunning(Thread thread) => (thread.ThreadState & ThreadState.WaitSleepJoin) == 0;

        private static void Add(List<Task<long>> all, int count, Func<Task<long>> start, string chain, int each = 1)
        {
            for (int i = 0; i < count; i++)
            {
                all.Add(start());
            }
            Console.WriteLine($"suspended {count * each} {chain}");
        }

        private static async Task<long> DeepTop(long value)
        {
            return await DeepMiddle(value) + 1;
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> DeepMiddle(long value)
        {
            return await DeepLeaf(value) + 1;
        }

        private static async Task<long> DeepLeaf(long value)
        {
            return await Begun() + value;
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> ValueTop(long value)
        {
            return await ValueLeaf(value) + 1;
        }

        private static async ValueTask<long> ValueLeaf(long value)
        {
            return await Begun() + value;
        }

        private static async Task<long> TwiceTop(long value)
        {
            return await SecondAwait(value) + 1;
        }

        private static async Task<long> SecondAwait(long value)
        {
            value += await Task.FromResult(2L);
            return await Begun() + value;
        }

        private static async Task<long> JoinedTop(long value)
        {
            long[] parts = await Task.WhenAll(Part(value), Part(value + 1));
            return parts[0] + parts[1];
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> Part(long value)
        {
            return await Begun() + value;
        }

        private static async Task<long> IteratedTop(long value)
        {
            await foreach (long item in Iterated(value))
            {
                value += item;
            }
            return value;
        }

        private static async IAsyncEnumerable<long> Iterated(long value)
        {
            yield return value;
            yield return await Begun() + value;
        }

        private static async Task<long> StartedTop(long value)
        {
            return await StartedLeaf(value) + 1;
        }

        private static async Task<long> StartedLeaf(long value)
        {
            return await Begun() + value;
        }

        private static async Task<long> ContinuedTop(long value)
        {
            return await ContinuedLeaf(value).ContinueWith(task => task.Result + 1, TaskScheduler.Default) + 1;
        }

        private static async Task<long> ContinuedLeaf(long value)
        {
            return await Begun() + value;
        }

        private static async Task<long> DoneTop(long value)
        {
            await Task.Yield();
            return value;
        }

        private static async Task<long> BlockedTop(long value)
        {
            return await BlockedLeaf(value) + 1;
        }

        private static async Task<long> BlockedLeaf(long value)
        {
            return await Begun() + value;
        }

        /// <summary>They wait for what only they have: the next collection takes them.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void DropSome()
        {
            for (int i = 0; i < 25; i++)
            {
                _ = Dropped(new TaskCompletionSource<long>());
            }
        }

        private static async Task<long> Dropped(TaskCompletionSource<long> gate)
        {
            Interlocked.Increment(ref begun);
            return await gate.Task;
        }
    }
}
