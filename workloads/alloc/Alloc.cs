using System;
using System.Collections.Generic;
using System.Runtime.CompilerServices;
using System.Threading;

namespace Workloads
{
    /// <summary>
    /// Two threads that allocate objects of known types, small and large, and
    /// count what they allocate.
    /// </summary>
    public static class Alloc
    {
        private sealed class Small
        {
            public int Value;
        }

        private sealed class Wide
        {
#pragma warning disable CS0649
            public long A, B, C, D, E, F, G, H, I, J, K, L;
#pragma warning restore CS0649
        }

        private sealed class Boxed<T>
        {
            public T Value;
        }

        private static object sink;

        public static int Main(string[] args)
        {
            var run = new Run(args);
            Console.WriteLine("method Workloads.Alloc.AllocateSmall");
            Console.WriteLine("method Workloads.Alloc.AllocateLarge");
            long small = Run.ObjectSize(4);
            long wide = Run.ObjectSize(12 * 8);
            long boxed = Run.ObjectSize(8);
            // A string: its length in 4 bytes, its characters and one more.
            long text = Run.ObjectSize(4 + 2 * 51);
            long ints = Run.ArraySize(300 * 4);
            long large = Run.ArraySize(30000 * 8);
            // One below and one above the 100 KiB that a heap counts between two events.
            long below = Run.ArraySize(24000 * 4);
            long above = Run.ArraySize(14000 * 8);
            bool over = false;
            long largeRounds = 0;
            var second = new Thread(() =>
            {
                while (!Volatile.Read(ref over))
                {
                    AllocateLarge();
                    largeRounds++;
                }
            })
            { Name = "alloc-large" };
            second.Start();
            long rounds = 0;
            while (run.More())
            {
                AllocateSmall();
                rounds++;
            }
            Volatile.Write(ref over, true);
            second.Join();
            Run.Allocated("Workloads.Alloc+Small", rounds * 4000 * small);
            Run.Allocated("Workloads.Alloc+Wide", rounds * 1000 * wide);
            Run.Allocated("Workloads.Alloc+Boxed`1", rounds * 2000 * boxed);
            Run.Allocated("System.String", rounds * 500 * text);
            Run.Allocated("System.Int32[]", rounds * 100 * ints);
            Run.Allocated("System.Double[]", largeRounds * 2 * large);
            Run.Allocated("System.Single[]", largeRounds * below);
            Run.Allocated("System.Int64[]", largeRounds * above);
            Run.Measured("allocated", GC.GetTotalAllocatedBytes(true));
            run.End();
            return 0;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void AllocateSmall()
        {
            for (int i = 0; i < 100; i++)
            {
                for (int k = 0; k < 10; k++)
                {
                    for (int n = 0; n < 4; n++)
                    {
                        sink = new Small { Value = n };
                    }
                    sink = new Boxed<string> { Value = "a" };
                    sink = new Boxed<string> { Value = "b" };
                    sink = new Wide { A = k };
                }
                for (int k = 0; k < 5; k++)
                {
                    sink = new string('y', 50);
                }
                sink = new int[300];
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void AllocateLarge()
        {
            for (int i = 0; i < 2; i++)
            {
                sink = new double[30000];
            }
            sink = new float[24000];
            sink = new long[14000];
            // Not the only one who allocates: the other thread is to have its turns.
            Thread.Sleep(1);
        }
    }
}
