using System;
using System.Collections.Concurrent;
using System.Collections.Generic;
using System.Diagnostics.Tracing;
using System.Runtime.CompilerServices;
using System.Threading;
using System.Threading.Tasks;

namespace Workloads
{
    /// <summary>Continues on a thread of its own, as a user interface does.</summary>
    public sealed class OwnContext : SynchronizationContext
    {
        private readonly BlockingCollection<(SendOrPostCallback, object)> posted =
            new BlockingCollection<(SendOrPostCallback, object)>();

        public OwnContext()
        {
            new Thread(() =>
            {
                SetSynchronizationContext(this);
                foreach (var (callback, state) in posted.GetConsumingEnumerable())
                {
                    callback(state);
                }
            })
            { IsBackground = true, Name = "own context" }.Start();
        }

        public override void Post(SendOrPostCallback callback, object state) => posted.Add((callback, state));
    }

    /// <summary>Runs tasks on the pool, one way round.</summary>
    public sealed class OwnScheduler : TaskScheduler
    {
        protected override IEnumerable<Task> GetScheduledTasks() => Array.Empty<Task>();

        protected override void QueueTask(Task task) =>
            ThreadPool.UnsafeQueueUserWorkItem(_ => TryExecuteTask(task), null);

        protected override bool TryExecuteTaskInline(Task task, bool queued) => false;
    }

    /// <summary>An awaitable that knows nothing of boxes: it gets an Action.</summary>
    public readonly struct OwnAwaitable : INotifyCompletion
    {
        public OwnAwaitable GetAwaiter() => this;

        public bool IsCompleted => false;

        public void GetResult()
        {
        }

        public void OnCompleted(Action continuation) =>
            ThreadPool.UnsafeQueueUserWorkItem(_ => continuation(), null);
    }

    /// <summary>Listens to what tasks tell: continuations are wrapped while somebody does.</summary>
    public sealed class TaskListener : EventListener
    {
        protected override void OnEventSourceCreated(EventSource source)
        {
            if (source.Name == "System.Threading.Tasks.TplEventSource")
            {
                EnableEvents(source, EventLevel.Verbose, EventKeywords.All);
            }
        }

        protected override void OnEventWritten(EventWrittenEventArgs told)
        {
        }
    }
}
