using System;
using System.Diagnostics.Tracing;
using System.Threading;

namespace Workloads
{
    /// <summary>
    /// A program that listens to the runtime's own events, as others do: how many GCAllocationTick
    /// come for a thousand arrays that end one each. It counts before it says `ready`, and again when
    /// its input has ended.
    /// </summary>
    public static class Ticks
    {
        private const int Arrays = 1000;
        private static object kept;

        private sealed class Listener : EventListener
        {
            public int Count;

            protected override void OnEventSourceCreated(EventSource source)
            {
                if (source.Name == "Microsoft-Windows-DotNETRuntime")
                {
                    EnableEvents(source, EventLevel.Verbose, (EventKeywords)1);
                }
            }

            protected override void OnEventWritten(EventWrittenEventArgs written)
            {
                if (written.EventName != null && written.EventName.StartsWith("GCAllocationTick"))
                {
                    Interlocked.Increment(ref Count);
                }
            }
        }

        public static int Main(string[] args)
        {
            var listener = new Listener();
            Run.Result("before", AreThere(listener));
            Console.WriteLine("ready");
            while (Console.In.ReadLine() != null)
            {
            }
            Run.Result("after", AreThere(listener));
            return 0;
        }

        /// <summary>Whether there is one for each; they come some time later.</summary>
        private static bool AreThere(Listener listener)
        {
            int before = Volatile.Read(ref listener.Count);
            for (int i = 0; i < Arrays; i++)
            {
                kept = new byte[200_000];
            }
            GC.KeepAlive(kept);
            return SpinWait.SpinUntil(() => Volatile.Read(ref listener.Count) - before >= Arrays, 10_000);
        }
    }
}
