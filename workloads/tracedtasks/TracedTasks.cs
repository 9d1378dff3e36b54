using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Net.Http;
using System.Runtime.CompilerServices;
using System.Threading;
using System.Threading.Tasks;
using System.Threading.Tasks.Sources;

namespace Workloads
{
    /// <summary>A result that is returned in memory.</summary>
    public struct Large
    {
        public long A, B, C, D, E;
        public string Text;

        public Large(int n)
        {
            A = B = C = D = E = n;
            Text = "large";
        }

        public long Sum => A + B + C + D + E + Text.Length;
    }

    /// <summary>Generic: shared code for references, code of its own for values.</summary>
    public class TaskBox<T>
    {
        private readonly T item;

        public TaskBox(T item)
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

        public static async Task<string> Name(bool waits)
        {
            if (waits)
            {
                await Task.Yield();
            }
            return typeof(T).Name;
        }

        public async Task<int> Throws(bool waits)
        {
            if (waits)
            {
                await Task.Yield();
            }
            return item != null ? throw new InvalidOperationException(typeof(T).Name) : 0;
        }
    }

    /// <summary>Its `this` is a reference to a place, which no suspension can keep.</summary>
    public struct TaskValue
    {
        public int N;

        public async Task<int> Own(bool waits)
        {
            int before = N;
            N += 100;
            if (waits)
            {
                await Task.Yield();
            }
            return before + N;
        }

        public async ValueTask<Large> Wide(bool waits)
        {
            if (waits)
            {
                await Task.Yield();
            }
            return new Large(N);
        }

        public override string ToString() => N.ToString();
    }

    public interface ITasks
    {
        Task<int> Called(int n);

        ValueTask Nothing(int n);

        Task<int> Plain(int n);

        ValueTask<T> PlainOf<T>(T item);

        Task<int> PlainError(int n);

        async Task<int> ByDefault(int n)
        {
            await Task.Yield();
            return n;
        }
    }

    public abstract class TaskBase
    {
        public abstract Task Covers(int n);

        public virtual async Task<int> Overridden(int n)
        {
            await Task.Yield();
            return n;
        }
    }

    public sealed class TaskDerived : TaskBase, ITasks
    {
        /// <summary>Returns more than it overrides.</summary>
#if RUNTIME_ASYNC
        public override async Task<string> Covers(int n)
#else
        public override Task Covers(int n) => CoversOf(n);

        public async Task<string> CoversOf(int n)
#endif
        {
            if (n % 2 == 0)
            {
                await Task.Yield();
            }
            return "covers";
        }

        public override async Task<int> Overridden(int n) => await base.Overridden(n) + 1;

        public async Task<int> Called(int n)
        {
            if (n % 2 == 0)
            {
                await Task.Yield();
            }
            return n;
        }

        public Task<int> Plain(int n) => n % 2 == 0 ? Task.FromResult(n) : Called(n);

        public ValueTask<T> PlainOf<T>(T item) => new ValueTask<T>(item);

        public Task<int> PlainError(int n) => n % 2 == 0 ? throw new InvalidOperationException() : Task.FromException<int>(new InvalidOperationException());

        public async ValueTask Nothing(int n)
        {
            if (n % 2 == 0)
            {
                await Task.Yield();
            }
        }
    }

    /// <summary>A source of value tasks that completes on another thread.</summary>
    public sealed class TaskSource : IValueTaskSource<int>
    {
        private ManualResetValueTaskSourceCore<int> core;

        public ValueTask<int> Later(int n)
        {
            core.Reset();
            short version = core.Version;
            ThreadPool.QueueUserWorkItem(_ => core.SetResult(n));
            return new ValueTask<int>(this, version);
        }

        public int GetResult(short token) => core.GetResult(token);

        public ValueTaskSourceStatus GetStatus(short token) => core.GetStatus(token);

        public void OnCompleted(Action<object> continuation, object state, short token, ValueTaskSourceOnCompletedFlags flags) =>
            core.OnCompleted(continuation, state, token, flags);
    }

    /// <summary>
    /// Methods that return tasks, whose calls it knows: async ones of every kind that there is, and others that return what they have
    /// got from those. Prints as traced does, and has its passes with asked=DIR. Where methods are compiled in a mixed way, those
    /// that are ordinary await and are awaited by those that are compiled with runtime async.
    /// </summary>
    public static class TracedTasks
    {
        private const int Each = 200;

        private static readonly CallCounts Expected = new CallCounts();
        private static readonly List<Task> NeverEnd = new List<Task>();
        private static readonly TaskDerived Derived = new TaskDerived();
        private static readonly TaskSource Source = new TaskSource();
        private static readonly HttpContent Content = new StringContent("content");
        private static int cleaned;

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var check = new Checked("checksum");
            string asked = Passes.Folder(args);
            run.Meet("begin");
            if (asked == null)
            {
                check.Add(Pass());
                Expected.Print(Console.Out);
            }
            else
            {
                for (int i = 0; i < 60; i++)
                {
                    // Until what is called often has been compiled again, with what it calls inlined.
                    check.Add(Pass());
                }
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
                    Expected.Print);
            }
            check.Print();
            run.End();
            return 0;
        }

        private static void Called(string method, int calls = Each, int errors = 0) => Expected.Add(method, calls, errors);

        private static long Pass()
        {
            long sum = Kinds().GetAwaiter().GetResult();
            sum += Errors().Result;
            sum += Both().Result;
            sum += Ordinary().Result;
            Called("TracedTasks.Kinds", 1);
            Called("TracedTasks.Errors", 1);
            Called("TracedTasks.Both", 1);
            Called("TracedTasks.Ordinary", 1);
            NeverEnd.Add(Never(new TaskCompletionSource<int>()));
            return sum;
        }

        private static async Task<long> Kinds()
        {
            long sum = 0;
            ITasks by = Derived;
            TaskBase based = Derived;
            for (int i = 0; i < Each; i++)
            {
                bool waits = i % 3 == 0;
                sum += await new TaskBox<int>(i).Get(waits) + (await new TaskBox<string>("x").Get(waits)).Length;
                sum += (await new TaskBox<Large>(new Large(i)).Get(waits)).Sum;
                sum += (await new TaskBox<string>("x").With(i, waits)).Value + (await new TaskBox<int>(i).With("yy", waits)).Value.Length;
                sum += (await TaskBox<string>.Name(waits)).Length + (await TaskBox<long>.Name(waits)).Length;
                sum += await new TaskValue { N = i }.Own(waits) + (await new TaskValue { N = i }.Wide(waits)).Sum;
                sum += await by.Called(i) + await by.ByDefault(i);
                await by.Nothing(i);
                await based.Covers(i);
#if RUNTIME_ASYNC
                sum += (await Derived.Covers(i)).Length;
#else
                await Derived.Covers(i);
                sum += 6;
#endif
                sum += await based.Overridden(i);
                sum += await Spans(i) + await Source.Later(i) + await Fibonacci(i % 5) + await Deep(i % 30);
                sum += await Captures(i)(waits) + await Configured(i).ConfigureAwait(false);
                await Loads();
            }
            Called("TaskBox<_>.Get", 3 * Each);
            Called("TaskBox<_>.With", 2 * Each);
            Called("TaskBox<_>.Name", 2 * Each);
            Called("TaskValue.Own");
            Called("TaskValue.Wide");
            Called("TaskDerived.Called");
            Called("TaskDerived.Nothing");
            Called("ITasks.ByDefault");
            Called("TaskDerived.Covers", 2 * Each);
            Called("TaskDerived.Overridden");
            Called("TaskBase.Overridden");
            Called("TracedTasks.Spans");
            Called("TracedTasks.Loads");
            Called("TaskSource.Later");
            Called("TracedTasks.Fibonacci", Each / 5 * (1 + 1 + 3 + 5 + 9));
            Called("TracedTasks.Deep", Enumerable.Range(0, Each).Sum(i => i % 30 + 1));
            Called("TracedTasks.Captures");
            Called("TracedTasks.Configured");
            return sum;
        }

        /// <summary>Through try, catch, finally and filters, with awaits wherever there can be one.</summary>
        private static async Task<long> Errors()
        {
            long sum = 0;
            for (int i = 0; i < Each; i++)
            {
                sum += await Caught(i) + await Cleans(i) + await FromWithin(i % 4);
                try
                {
                    sum += await Filtered(i);
                }
                catch (InvalidOperationException) when (i % 2 == 0)
                {
                    sum += 3;
                }
                catch (ArgumentException)
                {
                    sum += 5;
                }
                try
                {
                    await Nested(i);
                }
                catch (AggregateException e)
                {
                    sum += e.InnerExceptions.Count;
                }
                try
                {
                    sum += i % 2 == 0 ? await new TaskBox<string>("x").Throws(i % 4 == 0) : await new TaskBox<int>(i).Throws(i % 4 == 1);
                }
                catch (InvalidOperationException e)
                {
                    sum += e.Message.Length;
                }
                try
                {
                    sum += await AtOnceOrNever(i);
                }
                catch (NullReferenceException)
                {
                    sum += 7;
                }
            }
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
                        sum += waits.IsCanceled ? 11 : 13;
                    }
                }
            }
            Called("TracedTasks.Caught");
            Called("TracedTasks.Cleans");
            Called("TracedTasks.Thrower", 2 * Each, Each);
            Called("TracedTasks.FromWithin");
            Called("TracedTasks.Filtered", Each, Each);
            Called("TracedTasks.Nested", Each, Each);
            Called("TaskBox<_>.Throws", Each, Each);
            Called("TracedTasks.AtOnceOrNever");
            Called("TracedTasks.Cancelled", 10, 10);
            sum += cleaned;
            cleaned = 0;
            return sum;
        }

        /// <summary>Awaits what is ordinary, and what is only called.</summary>
        private static async Task<long> Both()
        {
            long sum = 0;
            Func<int, Task<int>> indirect = Forwards;
            ITasks by = Derived;
            for (int i = 0; i < Each; i++)
            {
                sum += await Done(i) + await Forwards(i) + await ForwardsValue(i) + await OldYields(i) + await OldDone(i);
                await Nothing();
                sum += await indirect(i) + Forwards(i).Result + await Generic(i) + (await Generic("x")).Length;
                sum += await Awaits(i) + await by.Plain(i) + await by.PlainOf(i) + (await by.PlainOf("x")).Length;
                try
                {
                    sum += await by.PlainError(i);
                }
                catch (InvalidOperationException)
                {
                    sum += 2;
                }
                try
                {
                    sum += await ThrowsAtOnce(i);
                }
                catch (InvalidOperationException)
                {
                    sum += 3;
                }
                try
                {
                    sum += i % 2 == 0 ? await OldThrows(i) : await ForwardsError(i);
                }
                catch (InvalidOperationException)
                {
                    sum += 5;
                }
            }
            int[] all = await Task.WhenAll(Enumerable.Range(0, Each).Select(n => Task.Run(() => Awaits(n))));
            Called("TaskDerived.Plain");
            Called("TaskDerived.PlainOf", 2 * Each);
            Called("TaskDerived.PlainError", Each, Each / 2);
            Called("TaskDerived.Called", Each / 2);
            Called("TracedTasks.Done");
            Called("TracedTasks.Forwards", 3 * Each);
            Called("TracedTasks.ForwardsValue");
            Called("TracedTasks.OldYields");
            Called("TracedTasks.OldDone");
            Called("TracedTasks.Nothing");
            Called("TracedTasks.Generic", 2 * Each);
            Called("TracedTasks.Awaits", 2 * Each);
            Called("TracedTasks.Inner", 5 * Each);
            Called("TracedTasks.ThrowsAtOnce", Each, Each);
            Called("TracedTasks.OldThrows", Each, Each);
            Called("TracedTasks.ForwardsError", Each / 2);
            return sum + all.Sum();
        }

        /// <summary>An ordinary async method.</summary>
#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> Ordinary()
        {
            long sum = 0;
            for (int i = 0; i < Each; i++)
            {
                sum += await Awaits(i) + await Forwards(i) + await Derived.Called(i);
                await Derived.Nothing(i);
                sum += (await new TaskBox<string>("x").Get(i % 2 == 0)).Length;
            }
            Called("TracedTasks.Awaits");
            Called("TracedTasks.Forwards");
            Called("TracedTasks.Inner", 2 * Each);
            Called("TaskDerived.Called");
            Called("TaskDerived.Nothing");
            Called("TaskBox<_>.Get");
            return sum;
        }

        /// <summary>So small that another assembly's method is inlined in it.</summary>
        private static async Task Loads() => await Content.LoadIntoBufferAsync();

        private static async Task<int> Spans(int n)
        {
#if RUNTIME_ASYNC
            Span<int> few = stackalloc int[4];
            few.Fill(n);
            int sum = few[0] + few[3];
            await Task.Yield();
            ReadOnlySpan<char> text = "text";
            return sum + text.Slice(1).Length;
#else
            await Task.Yield();
            return 2 * n + 3;
#endif
        }

        private static async Task<int> Fibonacci(int n) => n < 2 ? n : await Fibonacci(n - 1) + await Fibonacci(n - 2);

        private static async ValueTask<int> Deep(int n)
        {
            if (n == 0)
            {
                await Task.Yield();
                return 0;
            }
            return await Deep(n - 1) + 1;
        }

        private static Func<bool, Task<int>> Captures(int n) => async waits =>
        {
            if (waits)
            {
                await Task.Yield();
            }
            return n;
        };

        private static async Task<int> Configured(int n)
        {
            await Task.CompletedTask.ConfigureAwait(false);
            await Task.Run(() => { }).ConfigureAwait(false);
            return n;
        }

        private static async Task<int> Thrower(int n, bool waits)
        {
            if (waits)
            {
                await Task.Yield();
            }
            return n % 2 == 0 ? throw new InvalidOperationException("even") : n;
        }

        private static async Task<int> Caught(int i)
        {
            try
            {
                return await Thrower(i, i % 3 == 0);
            }
            catch (InvalidOperationException) when (i >= 0)
            {
                await Task.Yield();
                return -i;
            }
        }

        private static async Task<int> Cleans(int i)
        {
            int sum = 0;
            try
            {
                sum += await Thrower(i, i % 3 == 1);
            }
            catch (InvalidOperationException)
            {
                sum += 1;
            }
            finally
            {
                await Task.Yield();
                cleaned++;
            }
            return sum;
        }

        private static async ValueTask<int> FromWithin(int n)
        {
            for (int i = 0; ; i++)
            {
                try
                {
                    await Task.Yield();
                    if (i == n)
                    {
                        return i;
                    }
                }
                finally
                {
                    cleaned++;
                    cleaned--;
                }
            }
        }

        private static async Task<int> Filtered(int i)
        {
            try
            {
                await Task.Yield();
                throw i % 2 == 0 ? new InvalidOperationException() : new ArgumentException();
            }
            catch (NotSupportedException)
            {
                return 1;
            }
        }

        private static async Task Nested(int i)
        {
            try
            {
                try
                {
                    await Task.Yield();
                    throw new InvalidOperationException();
                }
                finally
                {
                    await Task.Yield();
                }
            }
            catch (Exception e)
            {
                await Task.Yield();
                if (i >= 0)
                {
                    throw new AggregateException(e, new ArgumentException());
                }
            }
        }

        /// <summary>Returns no task at all, now and then.</summary>
        private static Task<int> AtOnceOrNever(int i) => i % 5 == 0 ? null : Task.FromResult(i);

        private static async Task Cancelled(CancellationToken token) => await Task.Delay(Timeout.Infinite, token);

        private static Task<int> Done(int n) => Task.FromResult(n);

        private static Task<int> Forwards(int n) => Inner(n);

        /// <summary>It returns a task, whatever becomes of that: no call of it is an error.</summary>
        private static Task<int> ForwardsError(int n) => OldThrows(n);

        private static ValueTask<int> ForwardsValue(int n) => new ValueTask<int>(n);

        private static Task Nothing() => Task.CompletedTask;

        private static Task<T> Generic<T>(T item) => Task.FromResult(item);

        private static Task<int> ThrowsAtOnce(int n) => n >= 0 ? throw new InvalidOperationException("at once") : Task.FromResult(n);

        private static async Task<int> Inner(int n)
        {
            await Task.Yield();
            return n;
        }

        private static async Task<int> Awaits(int n) => n % 2 == 0 ? await Inner(n) : await Inner(n) + 1;

        private static async Task<int> Waits(Task<int> gate, int n) => await gate + n;

        private static async Task Never(TaskCompletionSource<int> gate) => await gate.Task;

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<int> OldYields(int n)
        {
            await Task.Yield();
            return n;
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<int> OldDone(int n)
        {
            if (n < 0)
            {
                await Task.Yield();
            }
            return n;
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<int> OldThrows(int n)
        {
            await Task.Yield();
            return n >= 0 ? throw new InvalidOperationException("later") : n;
        }
    }
}
