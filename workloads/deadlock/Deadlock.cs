using System;
using System.IO;
using System.Runtime.CompilerServices;
using System.Threading;

namespace Workloads
{
    /// <summary>
    /// Two threads that each hold one lock and wait for the other's, for good;
    /// three that wait for the same event, one that sleeps, one that waits for a pulse; main sleeps until
    /// its time is over. Prints `holds THREAD METHOD` of the two, `waits THREAD
    /// METHOD` of the others, and `ready` once it is so: each of the seven is in
    /// the wait it stays in, and asleep in the kernel.
    /// </summary>
    public static class Deadlock
    {
        private static readonly object Left = new object();
        private static readonly object Right = new object();
        private static readonly CountdownEvent Both = new CountdownEvent(2);
        private static readonly CountdownEvent Passed = new CountdownEvent(2);
        private static readonly ManualResetEvent Never = new ManualResetEvent(false);

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var check = new Checked("checksum");
            var threads = new[]
            {
                Start("left-first", LeftThenRight),
                Start("right-first", RightThenLeft),
                Start("sleeper", Sleep),
                Start("pulse", WaitForPulse),
                Start("idle-0", WaitForNothing),
                Start("idle-1", WaitForNothing),
                Start("idle-2", WaitForNothing),
            };
            // A thread in Both.Wait waits too, but not where it stays.
            Passed.Wait();
            while (!Array.TrueForAll(threads, Waits) || !OthersSleep())
            {
                Thread.Yield();
            }
            Console.WriteLine("holds left-first Workloads.Deadlock.LeftThenRight");
            Console.WriteLine("holds right-first Workloads.Deadlock.RightThenLeft");
            Console.WriteLine("waits sleeper Workloads.Deadlock.Sleep");
            Console.WriteLine("waits pulse Workloads.Deadlock.WaitForPulse");
            Console.WriteLine("waits idle-0 Workloads.Deadlock.WaitForNothing");
            Console.WriteLine("ready");
            while (run.More())
            {
                check.Add(Monitor.TryEnter(Left) ? 1 : 2);
                Thread.Sleep(10);
            }
            check.Print();
            run.End();
            return 0;
        }

        private static bool Waits(Thread thread)
        {
            return (thread.ThreadState & ThreadState.WaitSleepJoin) != 0;
        }

        /// <summary>
        /// Whether every thread of the process but the asking one sleeps in the
        /// kernel: a thread says that it waits before it is there.
        /// </summary>
        private static bool OthersSleep()
        {
            int awake = 0;
            foreach (string task in Directory.GetDirectories("/proc/self/task"))
            {
                try
                {
                    // PID (NAME) STATE …
                    string stat = File.ReadAllText(task + "/stat");
                    awake += stat[stat.LastIndexOf(')') + 2] == 'S' ? 0 : 1;
                }
                catch (IOException)
                {
                    // It has ended.
                }
            }
            return awake <= 1;
        }

        private static Thread Start(string name, ThreadStart body)
        {
            // In the background: the process ends although they do not.
            var thread = new Thread(body) { Name = name, IsBackground = true };
            thread.Start();
            return thread;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void LeftThenRight()
        {
            lock (Left)
            {
                Both.Signal();
                Both.Wait();
                Passed.Signal();
                lock (Right)
                {
                    Console.WriteLine("no deadlock");
                }
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void RightThenLeft()
        {
            lock (Right)
            {
                Both.Signal();
                Both.Wait();
                Passed.Signal();
                lock (Left)
                {
                    Console.WriteLine("no deadlock");
                }
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void Sleep()
        {
            Thread.Sleep(Timeout.Infinite);
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void WaitForPulse()
        {
            lock (Passed)
            {
                Monitor.Wait(Passed);
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void WaitForNothing()
        {
            Never.WaitOne();
        }
    }
}
