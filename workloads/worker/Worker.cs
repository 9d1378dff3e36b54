using System;
using System.Diagnostics;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;

namespace Workloads
{
    /// <summary>
    /// Works for two milliseconds and waits for four, again and again, as the
    /// worker of a pool does: 200 times in a row for one caller, then for another,
    /// both by the same method. It waits in `poll`, which a signal ends, and goes on
    /// waiting. Prints the shares of time that it measured, and how often a wait was ended.
    /// </summary>
    public static class Worker
    {
        private const int InARow = 200;
        private static readonly string[] Names = { "WorkAwhile", "WaitForOne", "WaitForAnother" };
        private static readonly long[] Spent = new long[3];
        private static long waits;
        private static long interrupted;

        [DllImport("libc", EntryPoint = "poll")]
        private static extern int Poll(IntPtr descriptors, UIntPtr count, int milliseconds);

        public static int Main(string[] args)
        {
            var run = new Run(args);
            Turns(run);
            long total = Spent[0] + Spent[1] + Spent[2];
            for (int i = 0; i < Names.Length; i++)
            {
                Run.Share("Workloads.Worker." + Names[i], Spent[i] * 100.0 / total);
            }
            Run.Measured("waits", waits);
            Run.Measured("interrupted", interrupted);
            run.End();
            return 0;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void Turns(Run run)
        {
            long before = Stopwatch.GetTimestamp();
            while (run.More())
            {
                // Half as much to half as much again, so that nobody's ticks fall into step with it.
                WorkAwhile(1000 + waits * 37 % 101 * 20);
                before = Took(0, before);
                if (waits / InARow % 2 == 0)
                {
                    WaitForOne();
                    before = Took(1, before);
                }
                else
                {
                    WaitForAnother();
                    before = Took(2, before);
                }
            }
        }

        private static long Took(int what, long before)
        {
            long now = Stopwatch.GetTimestamp();
            Spent[what] += now - before;
            return now;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void WorkAwhile(long microseconds)
        {
            long until = Clock.ThreadCpu() + microseconds * 1000;
            while (Clock.ThreadCpu() < until)
            {
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void WaitForOne()
        {
            Wait(4);
            waits++;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void WaitForAnother()
        {
            Wait(4);
            waits++;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void Wait(int milliseconds)
        {
            long end = Stopwatch.GetTimestamp() + milliseconds * Stopwatch.Frequency / 1000;
            for (long now = Stopwatch.GetTimestamp(); now < end; now = Stopwatch.GetTimestamp())
            {
                int left = (int)((end - now) * 1000 / Stopwatch.Frequency) + 1;
                if (Poll(IntPtr.Zero, UIntPtr.Zero, left) < 0)
                {
                    interrupted++;
                }
            }
        }
    }
}
