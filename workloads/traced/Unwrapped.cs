using System;
using System.Globalization;
using System.Runtime.CompilerServices;

namespace Workloads
{
    /// <summary>
    /// Methods around which no handler can be put. C# has neither `tail.` nor `jmp`: where they belong is code of the same length that
    /// means the same (`conv.i8; conv.i4` before a call of an int; a plain call), and a test writes them into a copy of the assembly.
    /// With unwrapped=N the tail calls are N deep, which a copy without them does not survive where N is large.
    /// </summary>
    public static class Unwrapped
    {
        public static void Print(int deep)
        {
            Console.WriteLine(string.Format(CultureInfo.InvariantCulture, "result unwrapped {0} {1}", Tail(deep, 0), Jump(deep)));
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int Tail(int n, int sum)
        {
            if (n == 0)
            {
                return sum;
            }
            return Tail(n - 1, (int)(long)(sum + n));
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int Jump(int n)
        {
            return Landing(n);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static int Landing(int n)
        {
            return 3 * n;
        }

        /// <summary>Of the kind that .NET on Linux does not call.</summary>
        private static int Any(__arglist)
        {
            return 1;
        }
    }
}
