using System;
using System.Runtime.CompilerServices;

namespace Workloads
{
    /// <summary>
    /// Tiny methods of many shapes, each called from one caller only. Most
    /// samples fall into prologues and epilogues, where a walker that trusts
    /// the frame pointer loses the caller. Prints each pair as
    /// `caller CALLEE CALLER`.
    /// </summary>
    public static class Leaf
    {
        private const int Calls = 40_000;

        public struct Triple
        {
            public long A;
            public long B;
            public long C;
        }

        private static readonly long[] Table = { 3, 1, 4, 1, 5, 9, 2, 6 };
        private static long field = 1;

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var sum = new Checked("checksum");
            foreach (string name in new[] { "Nothing", "Add", "Many", "Double", "Struct", "Saves", "Array", "Branch", "Field", "Protected" })
            {
                Console.WriteLine("caller Workloads.Leaf.Leaf" + name + " Workloads.Leaf.Calls" + name);
                Console.WriteLine("caller Workloads.Leaf.Calls" + name + " Workloads.Leaf.LeafRound");
            }
            while (run.More())
            {
                sum.Add(LeafRound());
            }
            sum.Print();
            run.End();
            return 0;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long LeafRound()
        {
            field = 1;
            long sum = CallsNothing(Calls);
            sum += CallsAdd(Calls);
            sum += CallsMany(Calls);
            sum += CallsDouble(Calls);
            sum += CallsStruct(Calls);
            sum += CallsSaves(Calls);
            sum += CallsArray(Calls);
            sum += CallsBranch(Calls);
            sum += CallsField(Calls);
            sum += CallsProtected(Calls);
            return sum;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long CallsNothing(int n)
        {
            for (int i = 0; i < n; i++)
            {
                LeafNothing();
            }
            return n;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void LeafNothing()
        {
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long CallsAdd(int n)
        {
            long x = 0;
            for (int i = 0; i < n; i++)
            {
                x = LeafAdd(x, i);
            }
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long LeafAdd(long x, int i)
        {
            return x * 31 + i;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long CallsMany(int n)
        {
            long x = 0;
            for (int i = 0; i < n; i++)
            {
                x += LeafMany(x, i, 3, 4, 5, 6, 7, i + 8, 9, 10);
            }
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long LeafMany(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j)
        {
            return a ^ (b + c * d) ^ (e + f * g) ^ (h + i * j);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long CallsDouble(int n)
        {
            double x = 1;
            for (int i = 0; i < n; i++)
            {
                x = LeafDouble(x, i);
            }
            return (long)x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static double LeafDouble(double x, int i)
        {
            return x * 0.5 + i;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long CallsStruct(int n)
        {
            var t = new Triple { A = 1, B = 2, C = 3 };
            for (int i = 0; i < n; i++)
            {
                t = LeafStruct(t, i);
            }
            return t.A ^ t.B ^ t.C;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static Triple LeafStruct(Triple t, int i)
        {
            return new Triple { A = t.B + i, B = t.C * 3, C = t.A };
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long CallsSaves(int n)
        {
            long x = 1;
            for (int i = 0; i < n; i++)
            {
                x += LeafSaves(x, i);
            }
            return x;
        }

        /// <summary>So many values alive at once that callee-saved registers are pushed.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long LeafSaves(long x, long i)
        {
            long a = x + i, b = x ^ i, c = x * i, d = x - i, e = x | i, f = x & i;
            long g = a * b, h = c * d, k = e * f, l = a + d, m = b + e, o = c + f;
            return (g ^ h) + (k ^ l) + (m ^ o) + a * c + b * d + e * g + f * h + k * m + l * o;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long CallsArray(int n)
        {
            long x = 0;
            for (int i = 0; i < n; i++)
            {
                x += LeafArray(Table, i & 7);
            }
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long LeafArray(long[] table, int i)
        {
            return table[i];
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long CallsBranch(int n)
        {
            long x = 0;
            for (int i = 0; i < n; i++)
            {
                x += LeafBranch(i);
            }
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long LeafBranch(int i)
        {
            if ((i & 3) == 0)
            {
                return i;
            }
            if ((i & 3) == 1)
            {
                return -i;
            }
            return i << 2;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long CallsField(int n)
        {
            for (int i = 0; i < n; i++)
            {
                LeafField(i);
            }
            return field;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void LeafField(int i)
        {
            field = field * 31 + i;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long CallsProtected(int n)
        {
            long x = 1;
            for (int i = 0; i < n; i++)
            {
                x = LeafProtected(x, i);
            }
            return x;
        }

        /// <summary>A protected region gives a frame and a funclet.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static long LeafProtected(long x, int i)
        {
            try
            {
                x = checked((x & 0xffff) + i);
            }
            finally
            {
                x ^= 5;
            }
            return x;
        }
    }
}
