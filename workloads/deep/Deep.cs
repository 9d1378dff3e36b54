using System;
using System.Globalization;
using System.Runtime.CompilerServices;

namespace Workloads
{
    /// <summary>
    /// Two methods that call each other down to a depth of 5,000 (depth=N for
    /// another) and a third that burns at the bottom.
    /// </summary>
    public static class Deep
    {
        public static int Main(string[] args)
        {
            var run = new Run(args);
            int depth = 5000;
            foreach (string arg in args)
            {
                if (arg.StartsWith("depth=", StringComparison.Ordinal))
                {
                    depth = int.Parse(arg.Substring(6), CultureInfo.InvariantCulture);
                }
            }
            var check = new Checked("checksum");
            while (run.More())
            {
                check.Add(DescendEven(depth));
            }
            Run.Result("depth", depth);
            check.Print();
            run.End();
            return 0;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static uint DescendEven(int left)
        {
            if (left <= 1)
            {
                return BurnAtBottom(1);
            }
            return DescendOdd(left - 1) + 1;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static uint DescendOdd(int left)
        {
            if (left <= 1)
            {
                return BurnAtBottom(2);
            }
            return DescendEven(left - 1) * 3;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static uint BurnAtBottom(uint x)
        {
            for (int i = 0; i < 3_000_000; i++)
            {
                x = x * 1664525 + 1013904223;
                x ^= x >> 13;
            }
            return x;
        }
    }
}
