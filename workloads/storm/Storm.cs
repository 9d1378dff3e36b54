using System;
using System.Runtime.CompilerServices;
using System.Threading;

namespace Workloads
{
    /// <summary>
    /// Known callers in a storm of garbage collections. To stop a thread for a
    /// collection the runtime replaces the return address of the method that
    /// runs, unless it runs at a place where it may be stopped at once. The
    /// methods here give it no such place: straight code (`Straight`), a loop
    /// over calls (`Over`), small methods without a frame (`Small`) and with
    /// one (`Framed`). So the replacement lasts until the method returns.
    /// Prints each pair as `caller CALLEE CALLER`.
    /// </summary>
    public static class Storm
    {
        /// <summary>Counts the chains of calls: whether the thread gets on between two collections.</summary>
        private static int calls;

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var sum = new Checked("checksum");
            foreach (string pair in new[]
            {
                "Straight CallsStraight", "CallsStraight StormRound",
                "OverLeaf Over", "Over CallsOver", "CallsOver StormRound",
                "Small1 CallsSmall", "Small2 Small1", "Small3 Small2", "CallsSmall StormRound",
                "FramedLeaf Framed", "Framed CallsFramed", "CallsFramed StormRound",
            })
            {
                string[] names = pair.Split(' ');
                Console.WriteLine("caller Workloads.Storm." + names[0] + " Workloads.Storm." + names[1]);
            }
            bool over = false;
            long collections = 0;
            var collector = new Thread(() =>
            {
                int before = 0;
                int starved = 0;
                while (!Volatile.Read(ref over))
                {
                    GC.Collect(0, GCCollectionMode.Forced, blocking: true);
                    collections++;
                    starved = Volatile.Read(ref calls) == before ? starved + 1 : 0;
                    // .NET 10 begins the next one before the other thread has run again, for ever.
                    while (starved > 10 && Volatile.Read(ref calls) == before && !Volatile.Read(ref over))
                    {
                        Thread.Yield();
                    }
                    before = Volatile.Read(ref calls);
                }
            })
            { Name = "collector" };
            collector.Start();
            while (run.More())
            {
                sum.Add((long)StormRound(7));
            }
            Volatile.Write(ref over, true);
            collector.Join();
            sum.Print();
            Run.Measured("collections", collections);
            run.End();
            return 0;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong StormRound(ulong x)
        {
            return CallsStraight(x) + CallsOver(x) + CallsSmall(x) + CallsFramed(x);
        }

        /// <summary>
        /// A number for each number, such that following them visits all. Too
        /// many for the processor's caches.
        /// </summary>
        private static readonly int[] Next = Cycle(1 << 23);

        private static int[] Cycle(int length)
        {
            var next = new int[length];
            for (int i = 0; i < length; i++)
            {
                next[i] = i;
            }
            ulong random = 1;
            for (int i = length - 1; i > 0; i--)
            {
                random = random * 6364136223846793005 + 1442695040888963407;
                int j = (int)((random >> 33) % (ulong)i);
                (next[i], next[j]) = (next[j], next[i]);
            }
            return next;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong CallsStraight(ulong x)
        {
            int at = (int)x;
            for (int i = 0; i < 400; i++)
            {
                at = Straight(at, Next);
                Volatile.Write(ref calls, calls + 1);
            }
            return (ulong)at;
        }

        /// <summary>Reads, each of which waits for the one before: some microseconds.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int Straight(int x, int[] next)
        {
            x = Follow(Follow(Follow(Follow(Follow(Follow(Follow(Follow(x, next), next), next), next), next), next), next), next);
            x = Follow(Follow(Follow(Follow(Follow(Follow(Follow(Follow(x, next), next), next), next), next), next), next), next);
            return x;
        }

        [MethodImpl(MethodImplOptions.AggressiveInlining)]
        private static int Follow(int x, int[] next)
        {
            x = next[next[next[next[x]]]];
            return next[next[next[next[x]]]];
        }

        [MethodImpl(MethodImplOptions.AggressiveInlining)]
        private static ulong Eight(ulong x)
        {
            x = x * 3 + (x >> 7);
            x = x * 5 + (x >> 9);
            x = x * 7 + (x >> 11);
            x = x * 9 + (x >> 13);
            x = x * 11 + (x >> 15);
            x = x * 13 + (x >> 17);
            x = x * 15 + (x >> 19);
            x = x * 17 + (x >> 21);
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong CallsOver(ulong x)
        {
            for (int i = 0; i < 60; i++)
            {
                x += Over(x, Next);
                Volatile.Write(ref calls, calls + 1);
            }
            return x;
        }

        /// <summary>A loop, but one with a call in it: it is stopped at the call's return only.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Over(ulong x, int[] next)
        {
            int at = (int)(x & 0xffff);
            for (int i = 0; i < 100; i++)
            {
                at = Follow(at, next);
                x ^= OverLeaf(x) + (ulong)at;
            }
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong OverLeaf(ulong x)
        {
            return Eight(Eight(x)) >> 3;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong CallsSmall(ulong x)
        {
            for (int i = 0; i < 40_000; i++)
            {
                x += Small1(x);
                Volatile.Write(ref calls, calls + 1);
            }
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Small1(ulong x)
        {
            return Small2(x + 1) + 1;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Small2(ulong x)
        {
            return Small3(Eight(x)) + 2;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Small3(ulong x)
        {
            return Eight(x) + 3;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong CallsFramed(ulong x)
        {
            for (int i = 0; i < 20_000; i++)
            {
                x += Framed(x, x + 1, x + 2);
                Volatile.Write(ref calls, calls + 1);
            }
            return x;
        }

        /// <summary>Two calls and values kept across them: the JIT gives it a frame.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong Framed(ulong x, ulong y, ulong z)
        {
            return FramedLeaf(x) * y + FramedLeaf(y) * z + x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static ulong FramedLeaf(ulong x)
        {
            return Eight(x) ^ x;
        }
    }
}
