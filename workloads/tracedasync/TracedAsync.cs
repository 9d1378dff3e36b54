using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.IO;
using System.Linq;
using System.Runtime.CompilerServices;
using System.Threading;
using System.Threading.Tasks;

namespace Workloads
{
    public class AsyncBox<T>
    {
        private readonly T item;

        public AsyncBox(T item)
        {
            this.item = item;
        }

        public async Task<T> Get(bool waits)
        {
            if (waits)
            {
                await Task.Yield();
            }
            return item;
        }

        public async ValueTask<KeyValuePair<T, U>> With<U>(U other, bool waits)
        {
            if (waits)
            {
                await Task.Yield();
            }
            return new KeyValuePair<T, U>(item, other);
        }
    }

    /// <summary>With one async method, so that its state machine's name is known.</summary>
    public static class AsyncSolo
    {
        public static async Task<int> Twice(int n)
        {
            await Task.Yield();
            await Task.Yield();
            return n * 2;
        }
    }

    /// <summary>An awaiter that continues on another thread, and returns when that has done all there is to do.</summary>
    public struct Elsewhere : ICriticalNotifyCompletion
    {
        public Elsewhere GetAwaiter() => this;

        public bool IsCompleted => false;

        public void GetResult()
        {
        }

        public void OnCompleted(Action continuation) => UnsafeOnCompleted(continuation);

        public void UnsafeOnCompleted(Action continuation)
        {
            var thread = new Thread(() => continuation());
            thread.Start();
            thread.Join();
        }
    }

    /// <summary>
    /// Async methods whose calls it knows: they complete at once or later, once or after many awaits, by an exception before or after
    /// the first one, by cancellation, by the thousand at once; with and without results; generic, nested; three calls that never end;
    /// and two that know how long they took. Prints as traced does.
    ///
    /// With asked=DIR it makes a pass whenever the file DIR/go-N is there, as traced does.
    /// </summary>
    public static class TracedAsync
    {
        private const int Each = 300;
        private const int Together = 3000;
        private const int Timed = 40;

        private static readonly CallCounts Expected = new CallCounts();
        private static readonly long[] TaskTicks = new long[Timed];
        private static readonly long[] ValueTicks = new long[Timed];
        private static readonly List<Task> NeverEnd = new List<Task>();
        private static long resumed;
        private static int voids;
        private static int taskCalls;
        private static int valueCalls;

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var check = new Checked("checksum");
            string asked = Passes.Folder(args);
            run.Meet("begin");
            if (asked == null)
            {
                check.Add(Pass());
                Print(Console.Out);
            }
            else
            {
                for (int i = 0; i < 5; i++)
                {
                    check.Add(Pass());
                }
                // Those who are on their way when somebody comes end while they are counted, and are none of theirs.
                var gate = new TaskCompletionSource<int>(TaskCreationOptions.RunContinuationsAsynchronously);
                List<Task<int>> before = Enumerable.Range(0, 200).Select(n => Waits(gate.Task, n)).ToList();
                Passes.Make(
                    asked,
                    () =>
                    {
                        gate.TrySetResult(1);
                        Task.WhenAll(before).GetAwaiter().GetResult();
                        Expected.Forget();
                        check.Add(Pass());
                    },
                    Print);
            }
            check.Print();
            run.End();
            return 0;
        }

        private static void Print(TextWriter to)
        {
            Expected.Print(to);
            double ns = 1e9 / Stopwatch.Frequency;
            to.WriteLine("timed Workloads.TracedAsync.TimedTask " + string.Join(" ", TaskTicks.Select(ticks => (long)(ticks * ns))));
            to.WriteLine("timed Workloads.TracedAsync.TimedValue " + string.Join(" ", ValueTicks.Select(ticks => (long)(ticks * ns))));
        }

        private static long Pass()
        {
            Task<long> pass = PassAsync();
            pass.GetAwaiter().GetResult();
            Expected.Add("TracedAsync.PassAsync", 1, 0);
            return pass.Result;
        }

        private static async Task<long> PassAsync()
        {
            long sum = 0;
            for (int i = 0; i < Each; i++)
            {
                sum += await AtOnce(i);
                await NothingAtOnce();
                sum += await Once(i);
                sum += await Many(i % 7);
                sum += await Value(i, i % 2 == 0);
                await NoValue(i % 2 == 0);
                sum += await Outer(i);
                sum += await AsyncSolo.Twice(i);
                sum += await new AsyncBox<int>(i).Get(i % 2 == 0);
                sum += (await new AsyncBox<string>("x").Get(i % 2 == 0)).Length;
                sum += (await new AsyncBox<string>("x").With(i, i % 3 == 0)).Value;
                sum += (await new AsyncBox<long>(i).With("yy", i % 3 == 0)).Value.Length;
                sum += await Same(i, i % 2 == 0) + (await Same("z", i % 2 == 0)).Length;
            }
            Expected.Add("TracedAsync.AtOnce", Each, 0);
            Expected.Add("TracedAsync.NothingAtOnce", Each, 0);
            Expected.Add("TracedAsync.Once", Each, 0);
            Expected.Add("TracedAsync.Many", Each, 0);
            Expected.Add("TracedAsync.Value", Each, 0);
            Expected.Add("TracedAsync.NoValue", Each, 0);
            Expected.Add("TracedAsync.Outer", Each, 0);
            Expected.Add("TracedAsync.Middle", Each, 0);
            Expected.Add("TracedAsync.Inner", Each, 0);
            Expected.Add("AsyncSolo.Twice", Each, 0);
            Expected.Add("AsyncBox<_>.Get", 2 * Each, 0);
            Expected.Add("AsyncBox<_>.With", 2 * Each, 0);
            Expected.Add("TracedAsync.Same", 2 * Each, 0);
            sum += await Errors();
            sum += await AtATime();
            sum += await Odd();
            taskCalls = valueCalls = 0;
            for (int i = 0; i < Timed; i++)
            {
                await TimedTask(i % 4 == 0 ? 4_000_000 : 2_000_000);
                sum += await TimedValue(i % 4 == 0 ? 4_000_000 : 2_000_000);
            }
            Expected.Add("TracedAsync.TimedTask", Timed, 0);
            Expected.Add("TracedAsync.TimedValue", Timed, 0);
            return sum;
        }

        private static async Task<long> Errors()
        {
            long sum = 0;
            for (int i = 0; i < Each; i++)
            {
                try
                {
                    sum += await ThrowsFirst(i);
                }
                catch (InvalidOperationException)
                {
                    sum += 3;
                }
                try
                {
                    sum += await ThrowsLater(i);
                }
                catch (InvalidOperationException)
                {
                    sum += 5;
                }
                try
                {
                    sum += await ValueThrows(i);
                }
                catch (InvalidOperationException)
                {
                    sum += 7;
                }
            }
            Expected.Add("TracedAsync.ThrowsFirst", Each, Each / 3);
            Expected.Add("TracedAsync.ThrowsLater", Each, Each / 4);
            Expected.Add("TracedAsync.ValueThrows", Each, Each / 2);
            for (int i = 0; i < 10; i++)
            {
                using (var source = new CancellationTokenSource())
                {
                    Task waits = Cancelled(source.Token);
                    source.Cancel();
                    try
                    {
                        await waits;
                    }
                    catch (OperationCanceledException)
                    {
                        sum += 11;
                    }
                }
            }
            Expected.Add("TracedAsync.Cancelled", 10, 10);
            return sum;
        }

        /// <summary>Thousands that wait at once, and thousands that race with their own begin.</summary>
        private static async Task<long> AtATime()
        {
            var gate = new TaskCompletionSource<int>(TaskCreationOptions.RunContinuationsAsynchronously);
            List<Task<int>> waiting = Enumerable.Range(0, Together).Select(n => Waits(gate.Task, n)).ToList();
            gate.SetResult(1);
            long sum = (await Task.WhenAll(waiting)).Sum();
            Expected.Add("TracedAsync.Waits", Together, 0);
            int[] raced = await Task.WhenAll(Enumerable.Range(0, 4).Select(n => Task.Run(() => Races(n))));
            Expected.Add("TracedAsync.Race", 4 * Together, 0);
            return sum + raced.Sum();
        }

        private static async Task<int> Races(int n)
        {
            var all = new Task<int>[Together];
            for (int i = 0; i < all.Length; i++)
            {
                all[i] = Race(n);
            }
            return (await Task.WhenAll(all)).Sum();
        }

        private static async Task<long> Odd()
        {
            long sum = 0;
            for (int i = 0; i < 20; i++)
            {
                sum += await DoneBeforeItReturns(i);
                Void();
            }
            Expected.Add("TracedAsync.DoneBeforeItReturns", 20, 0);
            while (Volatile.Read(ref voids) < 20)
            {
                await Task.Yield();
            }
            voids = 0;
            Expected.Add("TracedAsync.Void", 20, 0);
            await foreach (int n in Numbers(10))
            {
                sum += n;
            }
            Expected.Add("TracedAsync.Numbers", 1, 0);
            for (int i = 0; i < 3; i++)
            {
                NeverEnd.Add(Never(new TaskCompletionSource<int>()));
            }
            Func<int, Task<int>> lambda = async n =>
            {
                await Task.Yield();
                return n;
            };
            return sum + await lambda(5);
        }

        private static async Task<int> AtOnce(int n)
        {
            await Task.CompletedTask;
            return n;
        }

        private static async Task NothingAtOnce() => await Task.CompletedTask;

        private static async Task<int> Once(int n)
        {
            await Task.Yield();
            return n;
        }

        private static async Task<int> Many(int awaits)
        {
            for (int i = 0; i < awaits; i++)
            {
                await Task.Yield();
            }
            return awaits;
        }

        private static async ValueTask<int> Value(int n, bool waits)
        {
            if (waits)
            {
                await Task.Yield();
            }
            return n;
        }

        private static async ValueTask NoValue(bool waits)
        {
            if (waits)
            {
                await Task.Yield();
            }
        }

        private static async Task<T> Same<T>(T item, bool waits)
        {
            if (waits)
            {
                await Task.Yield();
            }
            return item;
        }

        private static async Task<int> Outer(int n) => await Middle(n) + 1;

        private static async ValueTask<int> Middle(int n)
        {
            int inner = await Inner(n).ConfigureAwait(false);
            await Task.Yield();
            return inner + 1;
        }

        private static async Task<int> Inner(int n)
        {
            await Task.Yield();
            return n;
        }

        private static async Task<int> ThrowsFirst(int i)
        {
            if (i % 3 == 0)
            {
                throw new InvalidOperationException("every third");
            }
            await Task.Yield();
            return i;
        }

        private static async Task<int> ThrowsLater(int i)
        {
            await Task.Yield();
            try
            {
                if (i % 4 == 0)
                {
                    throw new InvalidOperationException("every fourth");
                }
                return i;
            }
            finally
            {
                Interlocked.Increment(ref resumed);
            }
        }

        private static async ValueTask<int> ValueThrows(int i)
        {
            if (i % 4 < 2)
            {
                await Task.Yield();
            }
            if (i % 2 == 0)
            {
                throw new InvalidOperationException("every second");
            }
            return i;
        }

        private static async Task Cancelled(CancellationToken token) => await Task.Delay(Timeout.Infinite, token);

        private static async Task<int> Waits(Task<int> gate, int n) => await gate + n;

        private static async Task<int> Race(int n)
        {
            await Task.Yield();
            return n;
        }

        private static async Task<int> DoneBeforeItReturns(int n)
        {
            await default(Elsewhere);
            return n;
        }

        private static async void Void()
        {
            await Task.Yield();
            Interlocked.Increment(ref voids);
        }

        private static async IAsyncEnumerable<int> Numbers(int count)
        {
            for (int i = 0; i < count; i++)
            {
                await Task.Yield();
                yield return i;
            }
        }

        private static async Task Never(TaskCompletionSource<int> gate) => await gate.Task;

        private static async Task TimedTask(long ns)
        {
            long start = Stopwatch.GetTimestamp();
            Until(start, ns / 4);
            await Task.Yield();
            Until(start, ns / 2);
            await Task.Yield();
            TaskTicks[taskCalls++] = Until(start, ns) - start;
        }

        private static async ValueTask<int> TimedValue(long ns)
        {
            long start = Stopwatch.GetTimestamp();
            await Task.Yield();
            ValueTicks[valueCalls++] = Until(start, ns) - start;
            return 1;
        }

        private static long Until(long start, long ns)
        {
            long end = start + ns * Stopwatch.Frequency / 1_000_000_000;
            long now;
            do
            {
                now = Stopwatch.GetTimestamp();
            }
            while (now < end);
            return now;
        }
    }
}
