using System;
using System.Runtime.CompilerServices;
using System.Threading;

namespace Workloads
{
    /// <summary>
    /// Named threads that wait in known ways while one burns: for wall-clock
    /// samples. Prints `waits THREAD METHOD` and `burns THREAD METHOD`.
    /// </summary>
    public static class Sleepy
    {
        private static readonly object Door = new object();
        private static readonly ManualResetEvent Bell = new ManualResetEvent(false);
        private static volatile bool over;

        public static int Main(string[] args)
        {
            var run = new Run(args);
            var check = new Checked("checksum");
            Thread[] threads;
            lock (Door)
            {
                threads = new[]
                {
                    Start("sleeper", SleepInTurns),
                    Start("at-the-door", WaitAtTheDoor),
                    Start("for-the-bell", WaitForTheBell),
                };
                while (run.More())
                {
                    check.Add(BurnAwake(1));
                }
                over = true;
            }
            Bell.Set();
            foreach (Thread thread in threads)
            {
                thread.Join();
            }
            Console.WriteLine("waits sleeper Workloads.Sleepy.SleepInTurns");
            Console.WriteLine("waits at-the-door Workloads.Sleepy.WaitAtTheDoor");
            Console.WriteLine("waits for-the-bell Workloads.Sleepy.WaitForTheBell");
            Console.WriteLine("burns main Workloads.Sleepy.BurnAwake");
            check.Print();
            run.End();
            return 0;
        }

        private static Thread Start(string name, ThreadStart body)
        {
            var thread = new Thread(body) { Name = name };
            thread.Start();
            return thread;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void SleepInTurns()
        {
            while (!over)
            {
                Thread.Sleep(50);
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void WaitAtTheDoor()
        {
            lock (Door)
            {
                // Open only when the others are done.
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void WaitForTheBell()
        {
            Bell.WaitOne();
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        private static uint BurnAwake(uint x)
        {
            for (int i = 0; i < 1_000_000; i++)
            {
                x = x * 1664525 + 1013904223;
                x ^= x >> 13;
            }
            return x;
        }
    }
}
