using System;
using System.Runtime.CompilerServices;
using System.Threading;

namespace Workloads
{
    /// <summary>
    /// Two threads build and check trees and arrays while garbage collections
    /// of all generations run, compacting ones among them.
    /// </summary>
    public static class Gc
    {
        private sealed class Node
        {
            public Node Left;
            public Node Right;
            public int Value;
        }

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var trees = new Checked("trees");
            var arrays = new Checked("arrays");
            Console.WriteLine("method Workloads.Gc.BuildTree");
            // What this program allocates itself: exact sizes times counts.
            long nodeSize = Run.ObjectSize(8 + 8 + 4);
            long arraysSize = 0;
            for (int i = 0; i < 64; i++)
            {
                arraysSize += Run.ArraySize(1000 + i * 2000);
            }
            long fills = 0;
            bool over = false;
            var second = new Thread(() =>
            {
                // Once at least: a machine that gives no time before it is over must not change what is printed.
                do
                {
                    arrays.Add(FillArrays());
                    fills++;
                }
                while (!Volatile.Read(ref over));
            })
            { Name = "gc-arrays" };
            second.Start();
            int rounds = 0;
            while (run.More())
            {
                Node kept = BuildTree(14, 1);
                trees.Add(SumTree(kept));
                if (++rounds % 16 == 0)
                {
                    GC.Collect(rounds / 16 % 3, GCCollectionMode.Forced, blocking: true, compacting: true);
                    trees.Add(SumTree(kept));
                }
            }
            Volatile.Write(ref over, true);
            second.Join();
            trees.Print();
            arrays.Print();
            // Each generation's count holds those of the older ones.
            Run.Measured("collections", GC.CollectionCount(0));
            Run.Measured("collections_1", GC.CollectionCount(1));
            Run.Measured("collections_2", GC.CollectionCount(2));
            Run.Allocated("Workloads.Gc+Node", rounds * ((1L << 15) - 1) * nodeSize);
            Run.Allocated("System.Byte[]", fills * arraysSize);
            Run.Measured("allocated", GC.GetTotalAllocatedBytes(true));
            run.End();
            return 0;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static Node BuildTree(int depth, int value)
        {
            var node = new Node { Value = value };
            if (depth > 0)
            {
                node.Left = BuildTree(depth - 1, value * 3);
                node.Right = BuildTree(depth - 1, value * 5);
            }
            return node;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long SumTree(Node node)
        {
            if (node == null)
            {
                return 0;
            }
            return node.Value + SumTree(node.Left) * 7 + SumTree(node.Right) * 11;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long FillArrays()
        {
            long sum = 0;
            var last = new byte[1][];
            for (int i = 0; i < 64; i++)
            {
                var array = new byte[1000 + i * 2000];
                array[i] = (byte)i;
                array[array.Length - 1] = (byte)(i * 3);
                last[0] = array;
                sum = sum * 31 + last[0][i] + last[0][array.Length - 1];
            }
            return sum;
        }
    }
}
