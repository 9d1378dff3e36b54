using System;
using System.Diagnostics;
using System.Globalization;
using System.IO;
using System.Threading;

namespace Workloads
{
    /// <summary>
    /// How long a workload goes on, and how it prints its answers.
    /// A workload takes one argument: a number of seconds (default 2), or
    /// rounds=N for a fixed amount of work.
    ///
    /// With "attached" it prints "ready" when it has run for a while, and goes on until
    /// its input ends: for who comes to it meanwhile. With "soon", too, it says so
    /// after a few rounds.
    ///
    /// With meet=DIR:N it waits at certain moments for N workloads that do.
    /// With out=FILE it prints into a file: several workloads may share one
    /// standard output.
    ///
    /// It prints lines `key value…`. A line that starts with `result` is the
    /// same in every run, recorded or not; `share` and `measured` lines hold
    /// what the program measured about itself.
    /// </summary>
    public sealed class Run
    {
        private readonly Stopwatch watch = Stopwatch.StartNew();
        private readonly long startCpu = Clock.ProcessCpu();
        private readonly double seconds = 2;
        private readonly long limit = long.MaxValue;
        private readonly string meetingPlace = "";
        private readonly int meeting;
        private readonly bool attached;
        private readonly double warmUp = 1.5;
        private volatile bool inputEnded;
        private bool ready;
        private long rounds;

        public Run(string[] args)
        {
            foreach (string arg in args)
            {
                if (arg.StartsWith("rounds=", StringComparison.Ordinal))
                {
                    limit = long.Parse(arg.Substring(7), CultureInfo.InvariantCulture);
                    seconds = double.MaxValue;
                }
                else if (arg.StartsWith("meet=", StringComparison.Ordinal))
                {
                    int colon = arg.LastIndexOf(':');
                    meetingPlace = arg.Substring(5, colon - 5);
                    meeting = int.Parse(arg.Substring(colon + 1), CultureInfo.InvariantCulture);
                }
                else if (arg == "attached")
                {
                    attached = true;
                    seconds = double.MaxValue;
                    new Thread(() =>
                    {
                        Console.In.ReadToEnd();
                        inputEnded = true;
                    })
                    { IsBackground = true, Name = "input" }.Start();
                }
                else if (arg == "soon")
                {
                    warmUp = 0;
                }
                else if (arg.StartsWith("out=", StringComparison.Ordinal))
                {
                    Console.SetOut(new StreamWriter(arg.Substring(4)) { AutoFlush = true });
                }
                else if (char.IsDigit(arg[0]))
                {
                    seconds = double.Parse(arg, CultureInfo.InvariantCulture);
                }
            }
        }

        /// <summary>
        /// Waits until all workloads that were told to meet have come to this
        /// moment, each in its own CLR: the file system is what they share.
        /// </summary>
        public void Meet(string moment)
        {
            if (meeting == 0)
            {
                return;
            }
            File.Create(Path.Combine(meetingPlace, moment + "-" + Guid.NewGuid().ToString("N"))).Dispose();
            while (Directory.GetFiles(meetingPlace, moment + "-*").Length < meeting)
            {
                Thread.Sleep(1);
            }
        }

        /// <summary>
        /// Whether another round is due. One always is: a machine that gives no time before it is over must
        /// not change what is printed.
        /// </summary>
        public bool More()
        {
            if (attached && !ready && rounds > 3 && watch.Elapsed.TotalSeconds >= warmUp)
            {
                ready = true;
                Console.WriteLine("ready");
            }
            if (rounds >= limit || (rounds > 0 && Over))
            {
                return false;
            }
            rounds++;
            return true;
        }

        /// <summary>Whether the time is over; for other threads, counts nothing.</summary>
        public bool Over => inputEnded || watch.Elapsed.TotalSeconds >= seconds;

        /// <summary>Prints a line that is the same in every run.</summary>
        public static void Result(string name, object value)
        {
            Console.WriteLine(string.Format(CultureInfo.InvariantCulture, "result {0} {1}", name, value));
        }

        /// <summary>Prints a share of CPU time, in percent.</summary>
        public static void Share(string name, double percent)
        {
            Console.WriteLine(string.Format(CultureInfo.InvariantCulture, "share {0} {1:F3}", name, percent));
        }

        /// <summary>Prints something measured.</summary>
        public static void Measured(string name, object value)
        {
            Console.WriteLine(string.Format(CultureInfo.InvariantCulture, "measured {0} {1}", name, value));
        }

        /// <summary>Prints how many bytes of a type the program has allocated.</summary>
        public static void Allocated(string type, long bytes)
        {
            Console.WriteLine(string.Format(CultureInfo.InvariantCulture, "allocated {0} {1}", type, bytes));
        }

        /// <summary>Bytes of an object with so many bytes of fields, on 64 bits: a header and a type before them.</summary>
        public static long ObjectSize(long fields) => Math.Max(24, (16 + fields + 7) & ~7L);

        /// <summary>Bytes of an array with so many bytes of elements: its length is a word more.</summary>
        public static long ArraySize(long elements) => (24 + elements + 7) & ~7L;

        /// <summary>
        /// Prints rounds, memory, methods compiled, the process's CPU time before
        /// Main, and wall and CPU time since; the last thing a workload does.
        /// </summary>
        public void End()
        {
            double wall = watch.Elapsed.TotalMilliseconds;
            long cpu = Clock.ProcessCpu();
            Measured("rounds", rounds);
            Measured("peak_rss_kb", PeakMemory());
            Measured("jitted", CompiledMethods());
            Measured("wall_ms", wall.ToString("F3", CultureInfo.InvariantCulture));
            Measured("start_cpu_ms", (startCpu / 1e6).ToString("F3", CultureInfo.InvariantCulture));
            Measured("cpu_ms", ((cpu - startCpu) / 1e6).ToString("F3", CultureInfo.InvariantCulture));
        }

        /// <summary>Methods that the JIT has compiled; 0 where the runtime does not count them (before .NET 6).</summary>
        private static long CompiledMethods()
        {
            var count = Type.GetType("System.Runtime.JitInfo")?.GetMethod("GetCompiledMethodCount");
            return count == null ? 0 : (long)count.Invoke(null, new object[] { false });
        }

        /// <summary>Most memory that was resident at once, in KiB.</summary>
        private static long PeakMemory()
        {
            foreach (string line in File.ReadAllLines("/proc/self/status"))
            {
                if (line.StartsWith("VmHWM:", StringComparison.Ordinal))
                {
                    return long.Parse(line.Split(new[] { ' ', '\t' }, StringSplitOptions.RemoveEmptyEntries)[1], CultureInfo.InvariantCulture);
                }
            }
            return 0;
        }
    }
}
