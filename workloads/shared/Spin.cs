using System.Runtime.CompilerServices;

namespace Workloads
{
    /// <summary>Work that uses the processor and nothing else.</summary>
    public static class Spin
    {
        /// <summary>So many turns; a number that is the same for the same start.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        public static long For(long x, int turns)
        {
            for (int i = 0; i < turns; i++)
            {
                x = x * 31 + i;
                x ^= x >> 7;
            }
            return x;
        }
    }
}
