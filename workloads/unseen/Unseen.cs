using System;
using System.Runtime.InteropServices;
using System.Threading;

namespace Workloads
{
    /// <summary>
    /// CPU time that a sampler does not see: `blocked` lets two native threads
    /// burn that block all signals, `masked` a managed one, `short` native
    /// ones that live for half a millisecond, `taken` ignores the signal by
    /// which CoreCLR interrupts its threads, `shut` forbids itself timers and
    /// queued signals and then burns on a new thread, `few` allows itself no
    /// more descriptors first, `plain` just burns there. `moved` has
    /// SA_ONSTACK added to that signal, as Go's runtime does, and makes null
    /// references since, `crashes` makes them beneath a crash handler;
    /// `coroutine` burns natively on a stack of 2 KiB.
    /// Needs libnative_threads.so of crates/native-threads.
    /// </summary>
    public static class Unseen
    {
        private const string Library = "libnative_threads.so";
        private const int SigBlock = 0;
        private const int LimitOfDescriptors = 7;

        /// <summary>The signal by which CoreCLR interrupts its threads: 34 by glibc, 35 by musl.</summary>
        [DllImport("libc", EntryPoint = "__libc_current_sigrtmin")]
        private static extern int SigRtMin();

        [DllImport(Library, EntryPoint = "native_threads")]
        private static extern void NativeThreads(int atOnce, int times, int microseconds, int blocks);

        [DllImport(Library, EntryPoint = "refuse_timers")]
        private static extern int RefuseTimers();

        [DllImport(Library, EntryPoint = "move_to_alternate_stack")]
        private static extern int MoveToAlternateStack(int signal);

        [DllImport(Library, EntryPoint = "handle_crashes")]
        private static extern int HandleCrashes();

        [DllImport(Library, EntryPoint = "burn_on_small_stack")]
        private static extern int BurnOnSmallStack(int bytes, int microseconds);

        [DllImport("libc", EntryPoint = "signal")]
        private static extern IntPtr Signal(int number, IntPtr handler);

        [DllImport("libc", EntryPoint = "getrlimit")]
        private static extern int GetLimit(int resource, ulong[] softAndHard);

        [DllImport("libc", EntryPoint = "setrlimit")]
        private static extern int SetLimit(int resource, ulong[] softAndHard);

        [DllImport("libc", EntryPoint = "sigfillset")]
        private static extern int SigFillSet(byte[] set);

        [DllImport("libpthread.so.0", EntryPoint = "pthread_sigmask")]
        private static extern int SigMask(int how, byte[] set, IntPtr old);

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var check = new Checked("checksum");
            int milliseconds = (int)(double.Parse(args[0], System.Globalization.CultureInfo.InvariantCulture) * 1000);
            switch (args[args.Length - 1])
            {
                case "blocked":
                    NativeThreads(2, 1, milliseconds * 1000, 1);
                    break;
                case "short":
                    NativeThreads(1, milliseconds * 2, 500, 0);
                    break;
                case "masked":
                    OnThread(() =>
                    {
                        var all = new byte[128];
                        SigFillSet(all);
                        SigMask(SigBlock, all, IntPtr.Zero);
                        Work(run, check);
                    });
                    break;
                case "taken":
                    Signal(SigRtMin(), (IntPtr)1);
                    Work(run, check);
                    break;
                case "shut":
                    Run.Result("refused", RefuseTimers());
                    OnThread(() => Work(run, check));
                    break;
                case "moved":
                    // What compiles methods anew would interrupt the thread by the same signal, and on the alternate
                    // stack that ends the program without a profiler too.
                    OnThread(() =>
                    {
                        Faults(During(milliseconds / 4));
                        Run.Result("moved", MoveToAlternateStack(SigRtMin()));
                        Run.Result("missed", Faults(During(milliseconds)));
                    });
                    break;
                case "crashes":
                    Run.Result("above", HandleCrashes());
                    OnThread(() => Run.Result("missed", Faults(run.More)));
                    break;
                case "coroutine":
                    Run.Result("hurt", BurnOnSmallStack(2048, milliseconds * 1000));
                    break;
                case "few":
                    OnThread(() =>
                    {
                        // What work needs is loaded before, and what comes after it needs descriptors again.
                        check.Add(Spin.For(1, 200_000));
                        run.More();
                        var before = new ulong[2];
                        GetLimit(LimitOfDescriptors, before);
                        int answer = SetLimit(LimitOfDescriptors, new ulong[] { 3, before[1] });
                        Work(run, check);
                        SetLimit(LimitOfDescriptors, before);
                        Run.Result("limited", answer);
                    });
                    break;
                default:
                    OnThread(() => Work(run, check));
                    break;
            }
            check.Print();
            run.End();
            return 0;
        }

        private static Func<bool> During(int milliseconds)
        {
            var watch = System.Diagnostics.Stopwatch.StartNew();
            return () => watch.ElapsedMilliseconds < milliseconds;
        }

        /// <summary>Null references for so long; how many were not caught.</summary>
        private static long Faults(Func<bool> more)
        {
            string nothing = null;
            long missed = 0;
            while (more())
            {
                try
                {
                    missed += nothing.Length + 1;
                }
                catch (NullReferenceException)
                {
                    continue;
                }
                missed++;
            }
            return missed;
        }

        private static void OnThread(ThreadStart start)
        {
            var thread = new Thread(start) { Name = "unseen" };
            thread.Start();
            thread.Join();
        }

        private static void Work(Run run, Checked check)
        {
            while (run.More())
            {
                check.Add(Spin.For(1, 200_000));
            }
        }
    }
}
