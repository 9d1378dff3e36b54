using System;
using System.Collections.Generic;
using System.Runtime.CompilerServices;
using System.Threading;
using System.Threading.Channels;
using System.Threading.Tasks;

namespace Workloads
{
    /// <summary>One root for each way in which a method can wait for another.</summary>
    public static partial class AsyncChains
    {
        private static async Task<long> TaskRoot()
        {
            Truth.Enter(nameof(TaskRoot));
            return await TaskMiddle() + 1;
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> TaskMiddle()
        {
            Truth.Enter(nameof(TaskMiddle));
            return await TaskInner() + 1;
        }

        private static async Task<long> TaskInner()
        {
            Truth.Enter(nameof(TaskInner));
            await Truth.Gate;
            return BurnTask() + 1;
        }

        private static long plain;

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> PlainRoot()
        {
            Truth.Enter(nameof(PlainRoot));
            await PlainInner();
            return plain;
        }

        private static async Task PlainInner()
        {
            Truth.Enter(nameof(PlainInner));
            await Truth.Gate;
            plain = BurnPlain();
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> ValueRoot()
        {
            Truth.Enter(nameof(ValueRoot));
            return await ValueMiddle() + 1;
        }

        private static async ValueTask<long> ValueMiddle()
        {
            Truth.Enter(nameof(ValueMiddle));
            return await ValueInner().ConfigureAwait(false) + 1;
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async ValueTask<long> ValueInner()
        {
            Truth.Enter(nameof(ValueInner));
            await Truth.Gate;
            return BurnValue() + 1;
        }

        private static Task<long> VoidStart()
        {
            var done = new TaskCompletionSource<long>(TaskCreationOptions.RunContinuationsAsynchronously);
            VoidRoot(done);
            return done.Task;
        }

        private static async void VoidRoot(TaskCompletionSource<long> done)
        {
            Truth.Enter(nameof(VoidRoot));
            await Truth.Gate;
            done.SetResult(BurnVoid());
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> IteratorRoot()
        {
            Truth.Enter(nameof(IteratorRoot));
            long sum = 0;
            await foreach (long item in Items())
            {
                sum = sum * 31 + (item == 0 ? 0 : item + BurnBetween());
            }
            return sum;
        }

        private static async IAsyncEnumerable<long> Items()
        {
            // What an iterator sets is gone when it goes on.
            Truth.Enter(nameof(Items));
            yield return 0;
            Truth.Enter(nameof(Items));
            await Truth.Gate;
            yield return BurnItems();
        }

        private static async Task<long> FreeRoot()
        {
            Truth.Enter(nameof(FreeRoot));
            return await FreeInner().ConfigureAwait(false) + 1;
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> FreeInner()
        {
            Truth.Enter(nameof(FreeInner));
            await Truth.Gate.ConfigureAwait(false);
            return BurnFree() + 1;
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> ContextRoot()
        {
            Truth.Enter(nameof(ContextRoot));
            return await ContextInner() + 1;
        }

        private static async Task<long> ContextInner()
        {
            Truth.Enter(nameof(ContextInner));
            await Truth.Gate;
            return BurnContext() + 1;
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> SchedulerRoot()
        {
            Truth.Enter(nameof(SchedulerRoot));
            // A task that is done before it is unwrapped gets no promise.
            var begin = new TaskCompletionSource<bool>();
            Task<long> task = begin.Task
                .ContinueWith(_ => Truth.Watch(SchedulerOuter()), CancellationToken.None, TaskContinuationOptions.None, Scheduler)
                .Unwrap();
            begin.SetResult(true);
            return await task + 1;
        }

        private static async Task<long> SchedulerOuter()
        {
            Truth.Enter(nameof(SchedulerOuter));
            return await SchedulerInner() + 1;
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> SchedulerInner()
        {
            Truth.Enter(nameof(SchedulerInner));
            await Truth.Gate;
            return BurnScheduler() + 1;
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> YieldRoot()
        {
            Truth.Enter(nameof(YieldRoot));
            return await YieldInner() + 1;
        }

        private static async Task<long> YieldInner()
        {
            Truth.Enter(nameof(YieldInner));
            await Truth.Gate;
            await Task.Yield();
            return BurnYield() + 1;
        }

        private static async Task<long> DelayRoot()
        {
            Truth.Enter(nameof(DelayRoot));
            return await DelayInner() + 1;
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> DelayInner()
        {
            Truth.Enter(nameof(DelayInner));
            await Truth.Gate;
            await Task.Delay(1);
            return BurnDelay() + 1;
        }

        private static async Task<long> SourceRoot()
        {
            Truth.Enter(nameof(SourceRoot));
            var source = new TaskCompletionSource<bool>();
            Task completer = Complete(source);
            long sum = await SourceConsumer(source.Task);
            await completer;
            return sum;
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> SourceConsumer(Task source)
        {
            Truth.Enter(nameof(SourceConsumer));
            await source;
            return BurnSource() + 1;
        }

        /// <summary>Runs who waits, on its own stack: it is nobody's caller for that.</summary>
        private static async Task Complete(TaskCompletionSource<bool> source)
        {
            Truth.Enter(nameof(Complete));
            await Truth.Gate;
            source.SetResult(true);
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> LaterSourceRoot()
        {
            Truth.Enter(nameof(LaterSourceRoot));
            var source = new TaskCompletionSource<bool>(TaskCreationOptions.RunContinuationsAsynchronously);
            Task completer = Complete(source);
            long sum = await LaterSourceConsumer(source.Task);
            await completer;
            return sum;
        }

        private static async Task<long> LaterSourceConsumer(Task source)
        {
            Truth.Enter(nameof(LaterSourceConsumer));
            await source;
            return BurnLaterSource() + 1;
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> RunRoot()
        {
            Truth.Enter(nameof(RunRoot));
            return await Task.Run(() => Truth.Watch(RunInner())) + 1;
        }

        private static async Task<long> RunInner()
        {
            Truth.Enter(nameof(RunInner));
            await Truth.Gate;
            return BurnRun() + 1;
        }

        private static async Task<long> CalledRoot()
        {
            Truth.Enter(nameof(CalledRoot));
            return await Task.Run(() =>
            {
                Truth.Gate.Wait();
                return BurnCalled() + 1;
            }) + 1;
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> LambdaRoot()
        {
            Truth.Enter(nameof(LambdaRoot));
            Func<Task<long>> lambda = async () =>
            {
                Truth.Enter("LambdaRoot.lambda");
                await Truth.Gate;
                return BurnLambda() + 1;
            };
            return await Task.Run(() => Truth.Watch(lambda())) + 1;
        }

        private static async Task<long> LocalRoot()
        {
            Truth.Enter(nameof(LocalRoot));
            return await Inner() + 1;

            static async Task<long> Inner()
            {
                Truth.Enter("LocalRoot.Inner");
                await Truth.Gate;
                return BurnLocal() + 1;
            }
        }

        private static async Task<long> ContinueRoot()
        {
            Truth.Enter(nameof(ContinueRoot));
            return await ContinueInner().ContinueWith(task => task.Result + 1, TaskScheduler.Default) + 1;
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> ContinueInner()
        {
            Truth.Enter(nameof(ContinueInner));
            await Truth.Gate;
            return BurnContinue() + 1;
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> UnwrapRoot()
        {
            Truth.Enter(nameof(UnwrapRoot));
            var begin = new TaskCompletionSource<bool>();
            Task<long> task = begin.Task.ContinueWith(_ => Truth.Watch(UnwrapSecond()), TaskScheduler.Default).Unwrap();
            begin.SetResult(true);
            return await task + 1;
        }

        private static async Task<long> UnwrapSecond()
        {
            Truth.Enter(nameof(UnwrapSecond));
            await Truth.Gate;
            return BurnUnwrap() + 1;
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> AllRoot()
        {
            Truth.Enter(nameof(AllRoot));
            long[] both = await Task.WhenAll(AllFirst(), AllSecond());
            return both[0] ^ both[1];
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> AllFirst()
        {
            Truth.Enter(nameof(AllFirst));
            await Truth.Gate;
            return BurnAllFirst() + 1;
        }

        private static async Task<long> AllSecond()
        {
            Truth.Enter(nameof(AllSecond));
            await Truth.Gate;
            return BurnAllSecond() + 1;
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> AnyRoot()
        {
            Truth.Enter(nameof(AnyRoot));
            var never = new TaskCompletionSource<long>();
            Task<long> first = await Task.WhenAny(AnyFirst(), never.Task);
            return first.Result;
        }

        private static async Task<long> AnyFirst()
        {
            Truth.Enter(nameof(AnyFirst));
            await Truth.Gate;
            return BurnAny() + 1;
        }

        private static async Task<long> WaitRoot()
        {
            Truth.Enter(nameof(WaitRoot));
            return await WaitAsync(WaitInner(), TimeSpan.FromMinutes(10)) + 1;
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> WaitInner()
        {
            Truth.Enter(nameof(WaitInner));
            await Truth.Gate;
            return BurnWait() + 1;
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> LockRoot()
        {
            Truth.Enter(nameof(LockRoot));
            using var semaphore = new SemaphoreSlim(0);
            Task releaser = Release(semaphore);
            long sum = await LockInner(semaphore);
            await releaser;
            return sum;
        }

        private static async Task<long> LockInner(SemaphoreSlim semaphore)
        {
            Truth.Enter(nameof(LockInner));
            await semaphore.WaitAsync();
            return BurnLock() + 1;
        }

        private static async Task Release(SemaphoreSlim semaphore)
        {
            await Truth.Gate;
            semaphore.Release();
        }

        private static async Task<long> ChannelRoot()
        {
            Truth.Enter(nameof(ChannelRoot));
            var channel = Channel.CreateUnbounded<int>();
            Task writer = WriteTo(channel.Writer);
            long sum = await ChannelInner(channel.Reader);
            await writer;
            return sum;
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> ChannelInner(ChannelReader<int> reader)
        {
            Truth.Enter(nameof(ChannelInner));
            int item = await reader.ReadAsync();
            return BurnChannel() + item;
        }

        private static async Task WriteTo(ChannelWriter<int> writer)
        {
            await Truth.Gate;
            writer.TryWrite(3);
        }

        private static async Task<long> ListRoot()
        {
            Truth.Enter(nameof(ListRoot));
            Task<long> shared = ListShared();
            Task<long> first = ListFirst(shared);
            Task<long> second = ListSecond(shared);
            return await first + await second;
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> ListShared()
        {
            Truth.Enter(nameof(ListShared));
            await Truth.Gate;
            return BurnList() + 1;
        }

        private static async Task<long> ListFirst(Task<long> shared) => await shared + 1;

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> ListSecond(Task<long> shared) => await shared + 2;

        private static async Task<long> GenericRoot<T>(T value)
        {
            Truth.Enter(nameof(GenericRoot));
            return await GenericMiddle(value) + 1;
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> GenericMiddle<T>(T value)
        {
            Truth.Enter(nameof(GenericMiddle));
            return await GenericInner(value) + 1;
        }

        private static async Task<long> GenericInner<T>(T value)
        {
            Truth.Enter(nameof(GenericInner));
            await Truth.Gate;
            return value is string ? BurnGenericRef() : BurnGenericValue();
        }

        private static async Task<long> DepthRoot(int depth)
        {
            Truth.Enter(nameof(DepthRoot));
            return await Recurse(depth, depth) + 1;
        }

        private static async Task<long> Recurse(int left, int depth)
        {
            Truth.Enter(nameof(Recurse));
            if (left > 0)
            {
                return await Recurse(left - 1, depth) + 1;
            }
            await Truth.Gate;
            switch (depth)
            {
                case 1: return BurnDepth1() + 1;
                case 10: return BurnDepth10() + 1;
                case 50: return BurnDepth50() + 1;
                default: return BurnDepth200() + 1;
            }
        }

        private static async Task<long> CatchRoot()
        {
            Truth.Enter(nameof(CatchRoot));
            return await CatchInner() + 1;
        }

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> CatchInner()
        {
            Truth.Enter(nameof(CatchInner));
            long sum = 0;
            try
            {
                await Truth.Gate;
                throw new InvalidOperationException();
            }
            catch (InvalidOperationException)
            {
                await Task.Yield();
                sum += BurnCatch();
            }
            finally
            {
                await Task.Yield();
                sum += BurnFinally();
            }
            return sum;
        }

        private static async Task<long> CascadeRoot()
        {
            Truth.Enter(nameof(CascadeRoot));
            return await CascadeEnd() + 1;
        }

        /// <summary>A hundred methods end one in the other before it goes on: none of them awaits it.</summary>
#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> CascadeEnd()
        {
            Truth.Enter(nameof(CascadeEnd));
            Task before = Truth.Gate;
            for (int i = 0; i < 100; i++)
            {
                before = CascadeLink(before);
            }
            await before.ConfigureAwait(false);
            return BurnCascade() + 1;
        }

        private static async Task CascadeLink(Task before) => await before.ConfigureAwait(false);

#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> AwaiterRoot()
        {
            Truth.Enter(nameof(AwaiterRoot));
            return await AwaiterInner() + 1;
        }

        private static async Task<long> AwaiterInner()
        {
            Truth.Enter(nameof(AwaiterInner));
            await Truth.Gate;
            await default(OwnAwaitable);
            return BurnAwaiter() + 1;
        }

        /// <summary>Goes on on the stack of the one that it has waited for.</summary>
        private static async Task<long> AfterRoot()
        {
            Truth.Enter(nameof(AfterRoot));
            await AfterInner().ConfigureAwait(false);
            return BurnAfter() + 1;
        }

        private static async Task AfterInner() => await Truth.Gate;

        /// <summary>Never suspended: plain calls.</summary>
#if MIXED
        [RuntimeAsyncMethodGeneration(false)]
#endif
        private static async Task<long> FirstRoot()
        {
            Truth.Enter(nameof(FirstRoot));
            return await FirstInner() + 1;
        }

        private static async Task<long> FirstInner()
        {
            Truth.Enter(nameof(FirstInner));
            long sum = BurnFirst();
            await Truth.Gate;
            return sum;
        }
    }
}
