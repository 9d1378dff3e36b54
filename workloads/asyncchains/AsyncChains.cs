using System;
using System.Collections.Generic;
using System.Linq;
using System.Runtime.CompilerServices;
using System.Threading;
using System.Threading.Channels;
using System.Threading.Tasks;

namespace Workloads
{
    /// <summary>
    /// Async methods that burn in leaves of which each has one chain of methods that await it: prints
    /// `chain LEAF CALLER…` for each. `collect`: while another thread makes compacting
    /// collections. `listener`: while somebody listens to what tasks tell. `events`: leaves allocate and throw too.
    /// </summary>
    public static partial class AsyncChains
    {
        private static readonly OwnContext Context = new OwnContext();
        private static readonly OwnScheduler Scheduler = new OwnScheduler();
        private static readonly Func<Task<long>, TimeSpan, Task<long>> WaitAsync = (Func<Task<long>, TimeSpan, Task<long>>)
            typeof(Task<long>).GetMethod("WaitAsync", new[] { typeof(TimeSpan) })?.CreateDelegate(typeof(Func<Task<long>, TimeSpan, Task<long>>));

        private static volatile bool ended;

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var check = new Checked("checksum");
            Truth.Events = args.Contains("events");
            using TaskListener listener = args.Contains("listener") ? new TaskListener() : null;
            Thread collector = args.Contains("collect") ? StartCollecting() : null;
            Tell();
            while (run.More())
            {
                long sum = 0;
                foreach (var (root, watched) in Roots())
                {
                    sum = sum * 31 + Truth.Play(root, watched);
                }
                sum = sum * 31 + InContext();
                check.Add(sum);
            }
            ended = true;
            collector?.Join();
            check.Print();
            run.End();
            return 0;
        }

        private static Thread StartCollecting()
        {
            var thread = new Thread(() =>
            {
                var kept = new List<byte[]>();
                while (!ended)
                {
                    for (int i = 0; i < 200; i++)
                    {
                        kept.Add(new byte[500 + i]);
                    }
                    kept.RemoveRange(0, kept.Count / 2);
                    GC.Collect(2, GCCollectionMode.Forced, true, true);
                    // Else the others can wait for minutes: whoever wakes finds the next collection (10.0.14).
                    Thread.SpinWait(10_000);
                }
            })
            { Name = "collector" };
            thread.Start();
            return thread;
        }

        private static IEnumerable<(Func<Task<long>> Root, int Watched)> Roots()
        {
            yield return (TaskRoot, 0);
            yield return (PlainRoot, 0);
            yield return (ValueRoot, 0);
            yield return (VoidStart, 0);
            yield return (IteratorRoot, 0);
            yield return (FreeRoot, 0);
            yield return (SchedulerRoot, 1);
            yield return (YieldRoot, 0);
            yield return (DelayRoot, 0);
            yield return (SourceRoot, 0);
            yield return (LaterSourceRoot, 0);
            yield return (RunRoot, 1);
            yield return (CalledRoot, 0);
            yield return (LambdaRoot, 1);
            yield return (LocalRoot, 0);
            yield return (ContinueRoot, 0);
            yield return (UnwrapRoot, 1);
            yield return (AllRoot, 0);
            yield return (AnyRoot, 0);
            yield return (LockRoot, 0);
            yield return (ChannelRoot, 0);
            yield return (ListRoot, 0);
            yield return (() => GenericRoot("text"), 0);
            yield return (() => GenericRoot(7), 0);
            yield return (() => DepthRoot(1), 0);
            yield return (() => DepthRoot(10), 0);
            yield return (() => DepthRoot(50), 0);
            yield return (() => DepthRoot(200), 0);
            yield return (CatchRoot, 0);
            yield return (CascadeRoot, 0);
            yield return (AwaiterRoot, 0);
            yield return (AfterRoot, 0);
            yield return (FirstRoot, 0);
            if (WaitAsync != null)
            {
                yield return (WaitRoot, 0);
            }
            if (ForEachAsync != null)
            {
                yield return (EachRoot, 1);
            }
            if (WhenEach != null)
            {
                yield return (WhenEachRoot, 0);
            }
        }

        private static void Tell()
        {
            Truth.Chain("BurnTask", "TaskInner", "TaskMiddle", "TaskRoot");
            Truth.Chain("BurnPlain", "PlainInner", "PlainRoot");
            Truth.Chain("BurnValue", "ValueInner", "ValueMiddle", "ValueRoot");
            Truth.Chain("BurnVoid", "VoidRoot");
            Truth.Chain("BurnItems", "Items", "IteratorRoot");
            Truth.Chain("BurnBetween", "IteratorRoot");
            Truth.Chain("BurnFree", "FreeInner", "FreeRoot");
            Truth.Chain("BurnContext", "ContextInner", "ContextRoot");
            Truth.Chain("BurnScheduler", "SchedulerInner", "SchedulerOuter", "[Task.Run]", "SchedulerRoot");
            Truth.Chain("BurnYield", "YieldInner", "YieldRoot");
            Truth.Chain("BurnDelay", "DelayInner", "DelayRoot");
            Truth.Chain("BurnSource", "SourceConsumer", "SourceRoot");
            Truth.Chain("BurnLaterSource", "LaterSourceConsumer", "LaterSourceRoot");
            Truth.Chain("BurnRun", "RunInner", "[Task.Run]", "RunRoot");
            Truth.Chain("BurnCalled", ".CalledRoot.lambda", "[Task.Run]", "CalledRoot");
            Truth.Chain("BurnLambda", "LambdaRoot.lambda", "[Task.Run]", "LambdaRoot");
            Truth.Chain("BurnLocal", "LocalRoot.Inner", "LocalRoot");
            Truth.Chain("BurnContinue", "ContinueInner", "[ContinueWith]", "ContinueRoot");
            Truth.Chain("BurnUnwrap", "UnwrapSecond", "[Task.Run]", "UnwrapRoot");
            Truth.Chain("BurnAllFirst", "AllFirst", "[WhenAll]", "AllRoot");
            Truth.Chain("BurnAllSecond", "AllSecond", "[WhenAll]", "AllRoot");
            // Before .NET 6 the one with a result is one without, and a cast.
            string[] any = WaitAsync == null ? new[] { "[WhenAny]", "[ContinueWith]" } : new[] { "[WhenAny]" };
            Truth.Chain("BurnAny", new[] { "AnyFirst" }.Concat(any).Append("AnyRoot").ToArray());
            Truth.Chain("BurnLock", "LockInner", "LockRoot");
            Truth.Chain("BurnChannel", "ChannelInner", "ChannelRoot");
            Truth.Chain("BurnList", "ListShared", "[+1_awaiters]", ".ListFirst", "ListRoot");
            Truth.Chain("BurnGenericRef", "GenericInner", "GenericMiddle", "GenericRoot");
            Truth.Chain("BurnGenericValue", "GenericInner", "GenericMiddle", "GenericRoot");
            Truth.Chain("BurnDepth1", "Recurse*2", "DepthRoot");
            Truth.Chain("BurnDepth10", "Recurse*11", "DepthRoot");
            Truth.Chain("BurnDepth50", "Recurse*51", "DepthRoot");
            Truth.Chain("BurnDepth200", "Recurse*201", "DepthRoot");
            Truth.Chain("BurnCatch", "CatchInner", "CatchRoot");
            Truth.Chain("BurnFinally", "CatchInner", "CatchRoot");
            Truth.Chain("BurnCascade", "CascadeEnd", "CascadeRoot");
            Truth.Chain("BurnAwaiter", "AwaiterInner", "AwaiterRoot");
            Truth.Chain("BurnAfter", "AfterRoot");
            Truth.Chain("BurnFirst", "FirstInner", "FirstRoot", "*");
            if (WaitAsync != null)
            {
                Truth.Chain("BurnWait", "WaitInner", "[WaitAsync]", "WaitRoot");
            }
            if (ForEachAsync != null)
            {
                Truth.Chain("BurnEach", "EachInner", "EachBody", "System.Threading.Tasks.Parallel.ForEachAsync.lambda", "EachRoot");
            }
            if (WhenEach != null)
            {
                Truth.Chain("BurnWhenEach", "WhenEachInner", "System.Threading.Tasks.Task.WhenEachState.Iterate", "WhenEachRoot");
            }
        }

        /// <summary>With a SynchronizationContext, which awaits go back to.</summary>
        private static long InContext()
        {
            return Truth.Play(() =>
            {
                SynchronizationContext before = SynchronizationContext.Current;
                SynchronizationContext.SetSynchronizationContext(Context);
                try
                {
                    return ContextRoot();
                }
                finally
                {
                    SynchronizationContext.SetSynchronizationContext(before);
                }
            }, 0);
        }
    }
}
