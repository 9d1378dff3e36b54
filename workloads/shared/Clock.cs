using System.Runtime.InteropServices;

namespace Workloads
{
    /// <summary>CPU clocks of the kernel, in nanoseconds.</summary>
    public static unsafe class Clock
    {
        private struct Timespec
        {
            public long Seconds;
            public long Nanoseconds;
        }

        [DllImport("libc", EntryPoint = "clock_gettime")]
        private static extern int ClockGetTime(int clock, Timespec* time);

        private static long Read(int clock)
        {
            Timespec time;
            ClockGetTime(clock, &time);
            return time.Seconds * 1_000_000_000 + time.Nanoseconds;
        }

        /// <summary>CPU time of the calling thread (CLOCK_THREAD_CPUTIME_ID).</summary>
        public static long ThreadCpu() => Read(3);

        /// <summary>CPU time of the process (CLOCK_PROCESS_CPUTIME_ID).</summary>
        public static long ProcessCpu() => Read(2);
    }
}
